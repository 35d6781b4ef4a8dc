"""Permissions of the page of one-off runs, and the kinds of audit entries that it writes."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('wheelbeat', '0012_member'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='monitor',
            options={'permissions': [('run_monitor', 'Can run monitor now'), ('pause_monitor', 'Can pause and resume monitor'), ('import_monitor', 'Can import monitors'), ('view_scheduler', 'Can view the scheduler page'), ('view_oneoffrun', 'Can view one-off runs'), ('cancel_oneoffrun', 'Can cancel one-off runs'), ('move_oneoffrun', 'Can move one-off runs')], 'verbose_name': 'monitor', 'verbose_name_plural': 'monitors'},
        ),
        migrations.AlterField(
            model_name='audit',
            name='operation',
            field=models.CharField(choices=[('I', 'added'), ('U', 'changed'), ('D', 'deleted'), ('T', 'table emptied'), ('C', 'one-off runs cancelled'), ('M', 'one-off runs moved')], max_length=1, verbose_name='operation'),
        ),
    ]
