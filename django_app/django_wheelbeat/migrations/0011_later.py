"""The table of one-off runs, on PostgreSQL and SQLite."""

from django.db import migrations

from django_wheelbeat.database import schema


class Migration(migrations.Migration):

    dependencies = [
        ('wheelbeat', '0010_active_before'),
    ]

    operations = [
        migrations.RunPython(schema.add_later, schema.drop_later),
    ]
