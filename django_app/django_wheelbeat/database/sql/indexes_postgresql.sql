-- Indexes for the admin's filters that Django cannot declare for a single vendor. A partial index costs nothing for
-- monitors outside of it, and has the others in the order of the list. The index of tags is not partial, because the
-- planner uses the statistics of full indexes only, and needs them to distinguish rare from frequent tags.

-- name: wheelbeat_monitor_by_cron
CREATE INDEX wheelbeat_monitor_by_cron ON wheelbeat_monitor (name) WHERE cron > ''

-- name: wheelbeat_monitor_by_once
CREATE INDEX wheelbeat_monitor_by_once ON wheelbeat_monitor (name) WHERE once_at IS NOT NULL

-- name: wheelbeat_monitor_by_solar
CREATE INDEX wheelbeat_monitor_by_solar ON wheelbeat_monitor (name) WHERE solar_event > ''

-- name: wheelbeat_monitor_by_tag
CREATE INDEX wheelbeat_monitor_by_tag ON wheelbeat_monitor USING gin (string_to_array(tags, ','))
