"""The tables, their constraints and triggers, and the installation's UUID."""

import django_wheelbeat.monitors.columns
from django.db import migrations, models

from django_wheelbeat.database import schema


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='Change',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('monitor_id', models.BigIntegerField(null=True, verbose_name='monitor id')),
                ('operation', models.CharField(max_length=1, verbose_name='operation')),
                ('at', django_wheelbeat.monitors.columns.InstantField(db_default=django_wheelbeat.monitors.columns.UtcNow(), verbose_name='at')),
                ('actor', models.CharField(db_default='', default='', max_length=150, verbose_name='actor')),
                ('reason', models.CharField(db_default='', default='', max_length=200, verbose_name='reason')),
            ],
            options={
                'verbose_name': 'change',
                'verbose_name_plural': 'changes',
                'db_table': 'wheelbeat_changelog',
                'default_permissions': ('view',),
            },
        ),
        migrations.CreateModel(
            name='Installation',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.CharField(max_length=36)),
                ('schema_version', models.IntegerField(default=1)),
                ('pruned_xid', models.BigIntegerField(db_default=0, default=0)),
                ('pruned_id', models.BigIntegerField(db_default=0, default=0)),
            ],
            options={
                'db_table': 'wheelbeat_installation',
                'default_permissions': (),
            },
        ),
        migrations.CreateModel(
            name='Quarantine',
            fields=[
                ('job_key', models.CharField(max_length=250, primary_key=True, serialize=False, verbose_name='job')),
                ('definition_hash', models.CharField(max_length=64, verbose_name='definition')),
                ('reason', models.TextField(verbose_name='reason')),
                ('since', django_wheelbeat.monitors.columns.InstantField(db_default=django_wheelbeat.monitors.columns.UtcNow(), verbose_name='since')),
            ],
            options={
                'verbose_name': 'monitor in quarantine',
                'verbose_name_plural': 'monitors in quarantine',
                'db_table': 'wheelbeat_quarantine',
                'default_permissions': ('view',),
            },
        ),
        migrations.CreateModel(
            name='Beat',
            fields=[
                ('beat_id', models.CharField(max_length=36, primary_key=True, serialize=False, verbose_name='beat id')),
                ('namespace', models.CharField(max_length=200, verbose_name='namespace')),
                ('host', models.CharField(max_length=200, verbose_name='host')),
                ('pid', models.IntegerField(verbose_name='process')),
                ('version', models.CharField(max_length=40, verbose_name='version')),
                ('started_at', django_wheelbeat.monitors.columns.InstantField(verbose_name='started')),
                ('seen_at', django_wheelbeat.monitors.columns.InstantField(verbose_name='last report')),
                ('marks', models.TextField(default='{}', verbose_name='marks')),
                ('status', models.TextField(default='{}', verbose_name='status')),
            ],
            options={
                'verbose_name': 'beat',
                'verbose_name_plural': 'beats',
                'db_table': 'wheelbeat_beat',
                'default_permissions': ('view',),
                'indexes': [models.Index(fields=['namespace', 'seen_at'], name='wheelbeat_beat_seen')],
            },
        ),
        migrations.CreateModel(
            name='Monitor',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=200, unique=True, verbose_name='name')),
                ('task', models.CharField(max_length=200, verbose_name='task')),
                ('args', models.TextField(blank=True, db_default='[]', default='[]', verbose_name='arguments')),
                ('kwargs', models.TextField(blank=True, db_default='{}', default='{}', verbose_name='keyword arguments')),
                ('interval_ms', models.BigIntegerField(blank=True, null=True, verbose_name='interval')),
                ('cron', models.CharField(blank=True, db_default='', default='', max_length=255, verbose_name='cron expression')),
                ('timezone', models.CharField(db_default='UTC', default=django_wheelbeat.monitors.columns.default_timezone, max_length=64, verbose_name='time zone')),
                ('day_rule', models.CharField(choices=[('and', 'both must match'), ('or', 'either may match')], db_default='and', default='and', max_length=3, verbose_name='day rule')),
                ('once_at', django_wheelbeat.monitors.columns.InstantField(blank=True, null=True, verbose_name='once at')),
                ('solar_event', models.CharField(blank=True, db_default='', default='', max_length=24, verbose_name='solar event')),
                ('solar_latitude', models.FloatField(blank=True, null=True, verbose_name='latitude')),
                ('solar_longitude', models.FloatField(blank=True, null=True, verbose_name='longitude')),
                ('jitter_s', models.IntegerField(blank=True, null=True, verbose_name='jitter (seconds)')),
                ('start_at', django_wheelbeat.monitors.columns.InstantField(blank=True, null=True, verbose_name='start')),
                ('end_at', django_wheelbeat.monitors.columns.InstantField(blank=True, null=True, verbose_name='end')),
                ('one_off', models.BooleanField(db_default=False, default=False, verbose_name='one-off')),
                ('misfire', models.CharField(choices=[('auto', 'automatic'), ('skip', 'skip'), ('latest', 'the latest only'), ('all', 'all')], db_default='auto', default='auto', max_length=6, verbose_name='missed runs')),
                ('overlap', models.CharField(choices=[('allow', 'allow'), ('skip', 'skip'), ('queue_one', 'queue one')], db_default='allow', default='allow', max_length=9, verbose_name='overlapping runs')),
                ('queue', models.CharField(blank=True, db_default='', default='', max_length=200, verbose_name='queue')),
                ('exchange', models.CharField(blank=True, db_default='', default='', max_length=200, verbose_name='exchange')),
                ('routing_key', models.CharField(blank=True, db_default='', default='', max_length=200, verbose_name='routing key')),
                ('priority', models.SmallIntegerField(blank=True, null=True, verbose_name='priority')),
                ('headers', models.TextField(blank=True, db_default='{}', default='{}', verbose_name='headers')),
                ('expires_s', models.FloatField(blank=True, null=True, verbose_name='expires')),
                ('expires_next', models.BooleanField(db_default=False, default=False, verbose_name='expires at the next run')),
                ('options', models.TextField(blank=True, db_default='{}', default='{}', verbose_name='options')),
                ('enabled', models.BooleanField(db_default=True, default=True, verbose_name='enabled')),
                ('pause_reason', models.CharField(blank=True, db_default='', default='', max_length=200, verbose_name='pause reason')),
                ('description', models.TextField(blank=True, db_default='', default='', verbose_name='description')),
                ('tags', models.CharField(blank=True, db_default='', default='', max_length=255, verbose_name='tags')),
                ('incident_interval_ms', models.BigIntegerField(blank=True, null=True, verbose_name='incident interval')),
                ('incident_until', django_wheelbeat.monitors.columns.InstantField(blank=True, null=True, verbose_name='end of the incident')),
                ('effective_from', django_wheelbeat.monitors.columns.InstantField(db_default=django_wheelbeat.monitors.columns.UtcNow(), editable=False, verbose_name='in effect since')),
                ('finished_at', django_wheelbeat.monitors.columns.InstantField(blank=True, editable=False, null=True, verbose_name='finished')),
            ],
            options={
                'verbose_name': 'monitor',
                'verbose_name_plural': 'monitors',
                'db_table': 'wheelbeat_monitor',
                'permissions': [('run_monitor', 'Can run monitor now'), ('pause_monitor', 'Can pause and resume monitor'), ('import_monitor', 'Can import monitors'), ('view_scheduler', 'Can view the scheduler page')],
                'indexes': [models.Index(fields=['task'], name='wheelbeat_monitor_task'), models.Index(fields=['queue'], name='wheelbeat_monitor_queue'), models.Index(fields=['incident_until'], name='wheelbeat_monitor_incident_end')],
                'constraints': [models.CheckConstraint(condition=models.Q(models.Q(('interval_ms__gt', 0), ('interval_ms__isnull', False), ('cron', ''), ('once_at__isnull', True), ('solar_event', ''), ('solar_latitude__isnull', True), ('solar_longitude__isnull', True)), models.Q(('interval_ms__isnull', True), models.Q(('cron', ''), _negated=True), ('once_at__isnull', True), ('solar_event', ''), ('solar_latitude__isnull', True), ('solar_longitude__isnull', True)), models.Q(('interval_ms__isnull', True), ('cron', ''), ('once_at__isnull', False), ('solar_event', ''), ('solar_latitude__isnull', True), ('solar_longitude__isnull', True)), models.Q(('interval_ms__isnull', True), ('cron', ''), ('once_at__isnull', True), models.Q(('solar_event', ''), _negated=True), ('solar_latitude__gte', -90), ('solar_latitude__isnull', False), ('solar_latitude__lte', 90), ('solar_longitude__gte', -180), ('solar_longitude__isnull', False), ('solar_longitude__lte', 180)), _connector='OR'), name='wheelbeat_monitor_one_schedule', violation_error_message='Give exactly one schedule: an interval above zero, a cron expression, a single date and time, or a solar event with latitude and longitude.'), models.CheckConstraint(condition=models.Q(models.Q(('name', ''), _negated=True), models.Q(('task', ''), _negated=True)), name='wheelbeat_monitor_named', violation_error_message='A monitor needs a name and a task.'), models.CheckConstraint(condition=models.Q(models.Q(('incident_interval_ms__isnull', True), ('incident_until__isnull', True)), models.Q(('incident_interval_ms__gt', 0), ('incident_interval_ms__isnull', False), ('incident_until__isnull', False), ('once_at__isnull', True), models.Q(('interval_ms__isnull', True), ('incident_interval_ms__lt', models.F('interval_ms')), _connector='OR')), _connector='OR'), name='wheelbeat_monitor_incident', violation_error_message="An incident needs an interval shorter than the monitor's own, and an end; a single run has no incidents."), models.CheckConstraint(condition=models.Q(('start_at__isnull', True), ('end_at__isnull', True), ('start_at__lt', models.F('end_at')), _connector='OR'), name='wheelbeat_monitor_start_before_end', violation_error_message='The start must be before the end.'), models.CheckConstraint(condition=models.Q(('expires_s__isnull', True), models.Q(('expires_next', False), ('expires_s__gt', 0)), _connector='OR'), name='wheelbeat_monitor_expires', violation_error_message='Runs expire after a number of seconds above zero or at the next run, not both.'), models.CheckConstraint(condition=models.Q(('jitter_s__isnull', True), ('jitter_s__gte', 0), _connector='OR'), name='wheelbeat_monitor_jitter', violation_error_message='The jitter must be zero or more seconds.'), models.CheckConstraint(condition=models.Q(('priority__isnull', True), models.Q(('priority__gte', 0), ('priority__lte', 255)), _connector='OR'), name='wheelbeat_monitor_priority', violation_error_message='The priority must be between 0 and 255.'), models.CheckConstraint(condition=models.Q(('misfire__in', ['auto', 'skip', 'latest', 'all']), ('overlap__in', ['allow', 'skip', 'queue_one']), ('day_rule__in', ['and', 'or'])), name='wheelbeat_monitor_choices', violation_error_message='Unknown misfire policy, overlap policy or day rule.')],
            },
        ),
        migrations.RunPython(schema.complete, schema.take_back, atomic=False),
    ]
