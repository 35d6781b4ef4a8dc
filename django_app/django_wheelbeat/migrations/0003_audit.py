"""The table of the audit; its triggers are installed after every ``migrate``."""

import django_wheelbeat.monitors.columns
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('wheelbeat', '0002_claims'),
    ]

    operations = [
        migrations.CreateModel(
            name='Audit',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', django_wheelbeat.monitors.columns.InstantField(db_default=django_wheelbeat.monitors.columns.UtcNow(), db_index=True, verbose_name='at')),
                ('monitor_id', models.BigIntegerField(db_index=True, null=True, verbose_name='monitor id')),
                ('operation', models.CharField(choices=[('I', 'added'), ('U', 'changed'), ('D', 'deleted'), ('T', 'table emptied')], max_length=1, verbose_name='operation')),
                ('monitors', models.BigIntegerField(db_default=1, default=1, verbose_name='monitors')),
                ('changes', models.TextField(default='{}', verbose_name='changes')),
                ('actor', models.CharField(db_default='', default='', max_length=150, verbose_name='actor')),
                ('reason', models.CharField(db_default='', default='', max_length=200, verbose_name='reason')),
            ],
            options={
                'verbose_name': 'audit entry',
                'verbose_name_plural': 'audit entries',
                'db_table': 'wheelbeat_audit',
                'default_permissions': ('view',),
            },
        ),
    ]
