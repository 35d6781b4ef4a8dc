-- Indexes for the admin's filters that Django cannot say for this vendor alone. A partial index costs nothing to the
-- monitors that it leaves out, and has the others in the order of the list. That of the tags is not partial: only then
-- does the planner use its statistics, and know a rare tag from a frequent one.

-- name: wheelbeat_monitor_by_cron
CREATE INDEX wheelbeat_monitor_by_cron ON wheelbeat_monitor (name) WHERE cron > ''

-- name: wheelbeat_monitor_by_once
CREATE INDEX wheelbeat_monitor_by_once ON wheelbeat_monitor (name) WHERE once_at IS NOT NULL

-- name: wheelbeat_monitor_by_solar
CREATE INDEX wheelbeat_monitor_by_solar ON wheelbeat_monitor (name) WHERE solar_event > ''

-- name: wheelbeat_monitor_by_tag
CREATE INDEX wheelbeat_monitor_by_tag ON wheelbeat_monitor USING gin (string_to_array(tags, ','))
