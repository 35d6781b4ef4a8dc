-- Row-level triggers. The actor is passed in the single row of wheelbeat_actor, in the same transaction. Instants have
-- six decimals, as Django writes them, because they are compared as text. {logged} and {rearming} compare OLD and NEW.

-- name: trigger_wheelbeat_log_insert
CREATE TRIGGER wheelbeat_log_insert AFTER INSERT ON wheelbeat_monitor
BEGIN
    INSERT INTO wheelbeat_changelog (monitor_id, operation, actor, reason)
    VALUES (NEW.id, 'I', {who}, {why});
END

-- name: trigger_wheelbeat_log_update
CREATE TRIGGER wheelbeat_log_update AFTER UPDATE ON wheelbeat_monitor
WHEN OLD.id = NEW.id AND {logged}
BEGIN
    INSERT INTO wheelbeat_changelog (monitor_id, operation, actor, reason)
    VALUES (NEW.id, 'U', {who}, {why});
END

-- name: trigger_wheelbeat_log_renumber
CREATE TRIGGER wheelbeat_log_renumber AFTER UPDATE OF id ON wheelbeat_monitor
WHEN OLD.id <> NEW.id
BEGIN
    INSERT INTO wheelbeat_changelog (monitor_id, operation, actor, reason)
    VALUES (OLD.id, 'D', {who}, {why}),
           (NEW.id, 'I', {who}, {why});
END

-- name: trigger_wheelbeat_log_delete
CREATE TRIGGER wheelbeat_log_delete AFTER DELETE ON wheelbeat_monitor
BEGIN
    INSERT INTO wheelbeat_changelog (monitor_id, operation, actor, reason)
    VALUES (OLD.id, 'D', {who}, {why});
END

-- name: trigger_wheelbeat_keep_instants
CREATE TRIGGER wheelbeat_keep_instants AFTER UPDATE ON wheelbeat_monitor
WHEN {rearming}
  OR NEW.effective_from < OLD.effective_from
  OR (NEW.effective_from = OLD.effective_from AND NEW.finished_at IS NULL AND OLD.finished_at IS NOT NULL)
BEGIN
    UPDATE wheelbeat_monitor
    SET effective_from = CASE WHEN {rearming} THEN strftime('%Y-%m-%d %H:%M:%f000', 'now') ELSE OLD.effective_from END,
        finished_at = CASE WHEN NEW.once_at = OLD.once_at OR NOT {rearming}
            THEN coalesce(NEW.finished_at, OLD.finished_at) END
    WHERE id = NEW.id;
END
