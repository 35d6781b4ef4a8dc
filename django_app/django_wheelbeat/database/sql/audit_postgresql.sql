-- The audit: each statement writes one row per monitor with the changed columns, or one row for all monitors.
-- {pairs} builds column → [before, after] from rows o and n; {counts} builds column → number of monitors.
-- wheelbeat.bulk combines many statements in one row: "new" for the first, which sets it to the id of its row.

-- name: function_wheelbeat_audit_changes
CREATE OR REPLACE FUNCTION {schema}.wheelbeat_audit_changes() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off
AS $body$
DECLARE
    who text := {who};
    why text := {why};
    bulk text := coalesce(current_setting('wheelbeat.bulk', true), '');
    op text := left(TG_OP, 1);
    touched bigint := 0;
    what jsonb := '{}';
BEGIN
    IF TG_OP IN ('INSERT', 'UPDATE') THEN
        SELECT count(*) INTO touched FROM new_rows;
    ELSIF TG_OP = 'DELETE' THEN
        SELECT count(*) INTO touched FROM old_rows;
    END IF;
    IF TG_OP = 'TRUNCATE' THEN
        INSERT INTO {schema}.wheelbeat_audit (operation, monitors, changes, actor, reason) VALUES (op, 0, '{}', who, why);
    ELSIF touched > 0 AND (bulk <> '' OR {summarised}) THEN
        IF TG_OP = 'UPDATE' THEN
            SELECT count(*) FILTER (WHERE {differs}), {counts} INTO touched, what
            FROM old_rows o JOIN new_rows n ON o.id = n.id;
        END IF;
        UPDATE {schema}.wheelbeat_audit SET monitors = monitors + touched, changes = (
            SELECT coalesce(jsonb_object_agg(key, number), '{}')::text FROM (
                SELECT key, sum(value::bigint) AS number FROM (
                    SELECT * FROM jsonb_each_text(changes::jsonb) UNION ALL SELECT * FROM jsonb_each_text(what)
                ) AS both_of_them GROUP BY key
            ) AS sums
        )
        WHERE touched > 0 AND id = CASE WHEN bulk ~ '^[0-9]{1,18}$' THEN bulk::bigint END
          AND monitor_id IS NULL AND operation = op AND actor = who AND reason = why;
        IF touched > 0 AND NOT FOUND THEN
            INSERT INTO {schema}.wheelbeat_audit (operation, monitors, changes, actor, reason)
            VALUES (op, touched, what::text, who, why)
            RETURNING CASE WHEN bulk <> '' THEN set_config('wheelbeat.bulk', id::text, true) END INTO bulk;
        END IF;
    ELSIF TG_OP = 'INSERT' THEN
        INSERT INTO {schema}.wheelbeat_audit (monitor_id, operation, monitors, changes, actor, reason)
        SELECT n.id, op, 1, {pairs_insert}, who, why FROM new_rows n;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO {schema}.wheelbeat_audit (monitor_id, operation, monitors, changes, actor, reason)
        SELECT o.id, op, 1, {pairs_delete}, who, why FROM old_rows o;
    ELSE
        INSERT INTO {schema}.wheelbeat_audit (monitor_id, operation, monitors, changes, actor, reason)
        SELECT coalesce(n.id, o.id), CASE WHEN o.id IS NULL THEN 'I' WHEN n.id IS NULL THEN 'D' ELSE op END, 1,
            {pairs}, who, why
        FROM old_rows o FULL OUTER JOIN new_rows n ON o.id = n.id
        WHERE o.id IS NULL OR n.id IS NULL OR {differs};
    END IF;
    RETURN NULL;
END
$body$
