"""Column ``active_before``: enabled periods before a pause, so that pausing does not hide past runs."""

from django.db import migrations, models

from django_wheelbeat.database import triggers


def install(apps, schema_editor):
    if triggers.supported(schema_editor.connection.vendor):
        triggers.install(schema_editor.connection)


def uninstall(apps, schema_editor):
    if triggers.supported(schema_editor.connection.vendor):
        triggers.uninstall_active_periods(schema_editor.connection)


class Migration(migrations.Migration):

    dependencies = [
        ('wheelbeat', '0009_claim_digest'),
    ]

    operations = [
        migrations.AddField(
            model_name='monitor',
            name='active_before',
            field=models.CharField(blank=True, db_default='', default='', editable=False, max_length=255, verbose_name='enabled before'),
        ),
        migrations.RunPython(install, uninstall),
    ]
