"""Column ``packed`` (PostgreSQL), which beats read from large tables; computed when a row is written."""

from django.db import migrations

from django_wheelbeat.database import schema


class Migration(migrations.Migration):

    dependencies = [
        ('wheelbeat', '0006_origins'),
    ]

    operations = [
        migrations.RunPython(schema.add_packed, schema.drop_packed),
    ]
