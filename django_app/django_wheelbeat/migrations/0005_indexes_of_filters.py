"""Indexes for the admin's filters, so that no filter reads the whole table."""

from django.db import migrations, models

from django_wheelbeat.database import schema


class Migration(migrations.Migration):

    dependencies = [
        ('wheelbeat', '0004_changelog_by_monitor'),
    ]

    operations = [
        migrations.RemoveIndex(model_name='monitor', name='wheelbeat_monitor_task'),
        migrations.RemoveIndex(model_name='monitor', name='wheelbeat_monitor_queue'),
        migrations.AddIndex(
            model_name='monitor',
            index=models.Index(fields=['task', 'name'], name='wheelbeat_monitor_by_task'),
        ),
        migrations.AddIndex(
            model_name='monitor',
            index=models.Index(fields=['queue', 'name'], name='wheelbeat_monitor_by_queue'),
        ),
        migrations.AddIndex(
            model_name='monitor',
            index=models.Index(fields=['enabled', 'name'], name='wheelbeat_monitor_by_enabled'),
        ),
        migrations.AddIndex(
            model_name='monitor',
            index=models.Index(fields=['interval_ms'], name='wheelbeat_monitor_by_interval'),
        ),
        migrations.AddIndex(
            model_name='audit',
            index=models.Index(fields=['actor', '-id'], name='wheelbeat_audit_by_actor'),
        ),
        migrations.RunPython(schema.add_indexes, schema.drop_indexes),
    ]
