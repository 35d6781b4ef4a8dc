"""The table of origins of imported monitors."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('wheelbeat', '0005_indexes_of_filters'),
    ]

    operations = [
        migrations.CreateModel(
            name='Origin',
            fields=[
                ('monitor_id', models.BigIntegerField(primary_key=True, serialize=False)),
                ('source', models.CharField(db_index=True, max_length=200)),
                ('name', models.CharField(max_length=200)),
            ],
            options={
                'db_table': 'wheelbeat_origin',
                'default_permissions': (),
            },
        ),
    ]
