"""An index that tells what the change log said about a monitor lately: the reconcile asks it of whatever is wrong."""

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
