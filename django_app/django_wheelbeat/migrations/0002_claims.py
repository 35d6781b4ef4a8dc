"""The tables of claims and leases."""

from django.db import migrations, models


class CreateModelIfMissing(migrations.CreateModel):
    """Skips existing tables: workers without Django create them on first use, and Django may be added later."""

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        table = to_state.apps.get_model(app_label, self.name)._meta.db_table
        if table not in schema_editor.connection.introspection.table_names():
            super().database_forwards(app_label, schema_editor, from_state, to_state)


class Migration(migrations.Migration):

    dependencies = [
        ('wheelbeat', '0001_initial'),
    ]

    operations = [
        CreateModelIfMissing(
            name='Lease',
            fields=[
                ('id', models.CharField(max_length=32, primary_key=True, serialize=False)),
                ('owner', models.CharField(max_length=80)),
                ('fence', models.BigIntegerField()),
                ('until_ms', models.BigIntegerField()),
            ],
            options={
                'db_table': 'wheelbeat_lease',
                'default_permissions': (),
            },
        ),
        CreateModelIfMissing(
            name='Claim',
            fields=[
                ('id', models.CharField(max_length=32, primary_key=True, serialize=False)),
                ('state', models.CharField(max_length=1)),
                ('nonce', models.CharField(max_length=16)),
                ('execution', models.CharField(max_length=8)),
                ('digest', models.CharField(max_length=8)),
                ('started_ms', models.BigIntegerField()),
                ('ended_ms', models.BigIntegerField()),
                ('expires_ms', models.BigIntegerField()),
            ],
            options={
                'db_table': 'wheelbeat_claim',
                'default_permissions': (),
                'indexes': [models.Index(fields=['expires_ms'], name='wheelbeat_claim_expires')],
            },
        ),
    ]
