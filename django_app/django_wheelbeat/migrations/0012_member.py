"""The table in which beats that share the work say that they are here."""

from django.db import migrations

from django_wheelbeat.database import schema


class Migration(migrations.Migration):

    dependencies = [
        ('wheelbeat', '0011_later'),
    ]

    operations = [
        migrations.RunPython(schema.add_member, schema.drop_member, atomic=False),
    ]
