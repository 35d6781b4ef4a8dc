"""Index for the latest changes of a monitor; the reconcile reads them for each difference that it finds."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('wheelbeat', '0003_audit'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='change',
            index=models.Index(fields=['monitor_id', 'at'], name='wheelbeat_changelog_monitor'),
        ),
    ]
