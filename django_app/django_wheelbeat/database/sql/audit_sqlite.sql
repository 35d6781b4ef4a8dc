-- The audit, one row per monitor: SQLite has no statement-level triggers. {pairs…} is the text of a JSON object.

-- name: trigger_wheelbeat_audit_insert
CREATE TRIGGER wheelbeat_audit_insert AFTER INSERT ON wheelbeat_monitor
BEGIN
    INSERT INTO wheelbeat_audit (monitor_id, operation, monitors, changes, actor, reason)
    VALUES (NEW.id, 'I', 1, {pairs_insert}, {who}, {why});
END

-- name: trigger_wheelbeat_audit_update
CREATE TRIGGER wheelbeat_audit_update AFTER UPDATE ON wheelbeat_monitor
WHEN OLD.id <> NEW.id OR {differs}
BEGIN
    INSERT INTO wheelbeat_audit (monitor_id, operation, monitors, changes, actor, reason)
    VALUES (NEW.id, 'U', 1, {pairs}, {who}, {why});
END

-- name: trigger_wheelbeat_audit_delete
CREATE TRIGGER wheelbeat_audit_delete AFTER DELETE ON wheelbeat_monitor
BEGIN
    INSERT INTO wheelbeat_audit (monitor_id, operation, monitors, changes, actor, reason)
    VALUES (OLD.id, 'D', 1, {pairs_delete}, {who}, {why});
END
