"""What monitors have in common is recognised by a digest, not by a hash that somebody can aim at."""

from django.db import migrations

from django_wheelbeat.database import schema


class Migration(migrations.Migration):

    dependencies = [
        ('wheelbeat', '0007_packed'),
    ]

    operations = [
        migrations.RunPython(schema.add_digests, schema.drop_digests),
    ]
