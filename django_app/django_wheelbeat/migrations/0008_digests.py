"""Column ``packed`` uses digests instead of hashes for which collisions can be crafted."""

from django.db import migrations

from django_wheelbeat.database import schema


class Migration(migrations.Migration):

    dependencies = [
        ('wheelbeat', '0007_packed'),
    ]

    operations = [
        migrations.RunPython(schema.add_digests, schema.drop_digests),
    ]
