"""The second half of a claim's digest."""

from django.db import migrations, models


class AddFieldIfMissing(migrations.AddField):
    """Skips an existing column: workers add it on first use and may have been restarted before the migration."""

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        connection, table = schema_editor.connection, to_state.apps.get_model(app_label, self.model_name)._meta.db_table
        if table not in connection.introspection.table_names():
            return  # a database router keeps the claims elsewhere
        with connection.cursor() as cursor:
            columns = connection.introspection.get_table_description(cursor, table)
        if self.name not in {column.name for column in columns}:
            super().database_forwards(app_label, schema_editor, from_state, to_state)


class Migration(migrations.Migration):

    dependencies = [
        ('wheelbeat', '0008_digests'),
    ]

    operations = [
        AddFieldIfMissing(
            model_name='claim',
            name='digest_rest',
            field=models.CharField(db_default='', max_length=8),
        ),
    ]
