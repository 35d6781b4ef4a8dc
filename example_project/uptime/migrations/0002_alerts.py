import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('wheelbeat', '0011_later'),
        ('uptime', '0001_initial'),
    ]

    operations = [
        migrations.AddField(
            model_name='site',
            name='remind_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.CreateModel(
            name='Alert',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(auto_now_add=True)),
                ('text', models.CharField(max_length=300)),
                ('monitor', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to='wheelbeat.monitor')),
            ],
            options={
                'indexes': [models.Index(fields=['-at'], name='uptime_alert_at')],
            },
        ),
    ]
