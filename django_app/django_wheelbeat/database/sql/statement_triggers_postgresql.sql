-- Triggers that call wheelbeat_log_changes and wheelbeat_audit_changes once per statement; {job} is log or audit.

-- name: insert
CREATE OR REPLACE TRIGGER wheelbeat_{job}_insert AFTER INSERT ON {schema}.wheelbeat_monitor
REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION {schema}.wheelbeat_{job}_changes()

-- name: update
CREATE OR REPLACE TRIGGER wheelbeat_{job}_update AFTER UPDATE ON {schema}.wheelbeat_monitor
REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.wheelbeat_{job}_changes()

-- name: delete
CREATE OR REPLACE TRIGGER wheelbeat_{job}_delete AFTER DELETE ON {schema}.wheelbeat_monitor
REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION {schema}.wheelbeat_{job}_changes()

-- name: truncate
CREATE OR REPLACE TRIGGER wheelbeat_{job}_truncate AFTER TRUNCATE ON {schema}.wheelbeat_monitor
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.wheelbeat_{job}_changes()

-- name: always
ALTER TABLE {schema}.wheelbeat_monitor
    ENABLE ALWAYS TRIGGER wheelbeat_{job}_insert,
    ENABLE ALWAYS TRIGGER wheelbeat_{job}_update,
    ENABLE ALWAYS TRIGGER wheelbeat_{job}_delete,
    ENABLE ALWAYS TRIGGER wheelbeat_{job}_truncate
