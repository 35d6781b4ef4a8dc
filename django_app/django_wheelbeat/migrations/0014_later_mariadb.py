"""The table of one-off runs, on MariaDB."""

from django.db import migrations

from django_wheelbeat.database import schema


class Migration(migrations.Migration):

    dependencies = [
        ('wheelbeat', '0013_one_off_runs_page'),
    ]

    operations = [
        migrations.RunPython(schema.add_later_on_mariadb, schema.drop_later_on_mariadb),
    ]
