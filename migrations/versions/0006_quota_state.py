"""What gateways share of quotas: the state of each limit, who holds how much of it, and which replicas live.

`quota_exchange` is one replica's turn, in one statement: `gateway.store.quota_buckets` says what it is told and tells.
It locks rows in the order in which it is asked, which callers sort, so that no two turns wait for each other; it reads
the clock when it has the locks, so that time never goes back from one turn on a row to the next.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006_quota_state"
down_revision = "0005_usage"
branch_labels = None
depends_on = None

LOCK = """
CREATE FUNCTION quota_bucket_lock(ask jsonb) RETURNS quota_bucket LANGUAGE plpgsql AS $$
DECLARE
    bucket quota_bucket;
BEGIN
    LOOP
        SELECT * INTO bucket FROM quota_bucket
        WHERE node = ask->>'node' AND dimension = ask->>'dimension' AND model = ask->>'model'
            AND calendar = ask->>'calendar' AND window_start_ns = (ask->>'window_start_ns')::bigint
        FOR UPDATE;
        IF FOUND THEN
            RETURN bucket;
        END IF;
        INSERT INTO quota_bucket (node, dimension, model, calendar, window_start_ns)
        VALUES (ask->>'node', ask->>'dimension', ask->>'model', ask->>'calendar', (ask->>'window_start_ns')::bigint)
        ON CONFLICT DO NOTHING;
    END LOOP;
END $$
"""

# What is granted or held counts from now on: time that went unused before is not saved up. The longest such time of the
# last seconds is remembered, for what was spent meanwhile by replicas that could not tell.
LIFT = """
CREATE FUNCTION quota_bucket_lift(bucket quota_bucket, lead numeric) RETURNS quota_bucket LANGUAGE plpgsql AS $$
DECLARE
    full_ns CONSTANT numeric := div(bucket.tat + bucket.ticks_per_ns - 1, bucket.ticks_per_ns);
    lifted CONSTANT numeric := bucket.clock_ns * bucket.ticks_per_ns + lead;
BEGIN
    IF full_ns < bucket.clock_ns AND (
        bucket.clock_ns - full_ns >= bucket.idle_until_ns - bucket.idle_from_ns
        OR bucket.idle_until_ns < bucket.clock_ns - 10000000000
    ) THEN
        bucket.idle_from_ns := full_ns;
        bucket.idle_until_ns := bucket.clock_ns;
    END IF;
    bucket.tat := greatest(bucket.tat, lifted);
    RETURN bucket;
END $$
"""

# Before any claim: time has passed, what the replica reports has happened, and what is held is charged as of now.
REPORT = """
CREATE FUNCTION quota_bucket_report(
    bucket quota_bucket, ask jsonb, now_ns bigint, me text, alive text[], lease_ns bigint
) RETURNS quota_bucket LANGUAGE plpgsql AS $$
DECLARE
    ticks CONSTANT numeric := (ask->>'limit')::numeric;
    period CONSTANT numeric := (ask->>'period_ns')::numeric;
    debt_since_ns CONSTANT numeric := now_ns - (ask->>'debt_age_ns')::numeric;
    step_ns CONSTANT bigint := greatest(0, bucket.clock_ns - now_ns);
    owed numeric := (ask->>'debt')::numeric * period;
    idle numeric;
    held numeric;
BEGIN
    -- Where the server's clock was set back, everything remembered moves with it.
    bucket.tat := bucket.tat - step_ns * bucket.ticks_per_ns;
    bucket.idle_from_ns := bucket.idle_from_ns - step_ns;
    bucket.idle_until_ns := bucket.idle_until_ns - step_ns;
    bucket.clock_ns := now_ns;
    SELECT coalesce(jsonb_object_agg(id, jsonb_build_array(amount, since_ns)), '{}') INTO bucket.holders
    FROM (
        SELECT key AS id, (value->>0)::numeric AS amount, least((value->>1)::bigint, now_ns) AS since_ns
        FROM jsonb_each(bucket.holders)
    ) AS holder
    WHERE id <> me AND CASE bucket.dimension
        WHEN 'BUDGET' THEN true
        WHEN 'CONCURRENCY' THEN id = ANY (alive)
        ELSE since_ns > now_ns - lease_ns
    END;
    bucket.settled := bucket.settled + (ask->>'settled')::numeric;
    IF bucket.dimension IN ('CONCURRENCY', 'BUDGET') THEN
        RETURN bucket;
    END IF;
    IF bucket.ticks_per_ns <> ticks THEN
        bucket.tat := div(bucket.tat * ticks + bucket.ticks_per_ns - 1, bucket.ticks_per_ns);
        bucket.ticks_per_ns := ticks;
    END IF;
    IF owed > 0 THEN
        -- First out of what the bucket left unused since then, as one that had known of it would have.
        idle := ticks * greatest(0, bucket.idle_until_ns - greatest(bucket.idle_from_ns, debt_since_ns));
        bucket.idle_from_ns := bucket.idle_until_ns - div(greatest(0, idle - owed), ticks);
        owed := owed - least(owed, idle);
        IF owed > 0 THEN
            bucket.tat := greatest(bucket.tat, debt_since_ns * ticks) + owed;
        END IF;
    END IF;
    bucket.tat := bucket.tat - (ask->>'refund')::numeric * period;
    held := quota_bucket_held(bucket.holders) + (ask->>'kept')::numeric;
    RETURN CASE WHEN held > 0 THEN quota_bucket_lift(bucket, held * period) ELSE bucket END;
END $$
"""

HELD = """
CREATE FUNCTION quota_bucket_held(holders jsonb) RETURNS numeric LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(sum((value->>0)::numeric), 0) FROM jsonb_each(holders)
$$
"""

ROOM = """
CREATE FUNCTION quota_bucket_room(bucket quota_bucket, ask jsonb) RETURNS numeric LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(0, CASE
        WHEN bucket.dimension IN ('CONCURRENCY', 'BUDGET') THEN
            (ask->>'limit')::numeric - bucket.settled - quota_bucket_held(bucket.holders) - (ask->>'kept')::numeric
        ELSE div(
            (ask->>'burst')::numeric * (ask->>'period_ns')::numeric
                - greatest(0, bucket.tat - bucket.clock_ns * bucket.ticks_per_ns),
            (ask->>'period_ns')::numeric
        )
    END)
$$
"""

GRANT = """
CREATE FUNCTION quota_bucket_grant(bucket quota_bucket, ask jsonb, claimed numeric, spare numeric, me text)
RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
    is_rate CONSTANT boolean := bucket.dimension NOT IN ('CONCURRENCY', 'BUDGET');
    -- What is claimed of a rate is spent as soon as it arrives; slots and budgets stay held until they are settled.
    held CONSTANT numeric := (ask->>'kept')::numeric + spare + CASE WHEN is_rate THEN 0 ELSE claimed END;
BEGIN
    IF is_rate AND claimed + spare > 0 THEN
        bucket := quota_bucket_lift(bucket, 0);
        bucket.tat := bucket.tat + (claimed + spare) * (ask->>'period_ns')::numeric;
    END IF;
    IF held > 0 THEN
        bucket.holders := bucket.holders || jsonb_build_object(me, jsonb_build_array(held, bucket.clock_ns));
    END IF;
    UPDATE quota_bucket SET
        tat = bucket.tat, ticks_per_ns = bucket.ticks_per_ns, settled = bucket.settled,
        holders = bucket.holders, clock_ns = bucket.clock_ns,
        idle_from_ns = bucket.idle_from_ns, idle_until_ns = bucket.idle_until_ns
    WHERE node = bucket.node AND dimension = bucket.dimension AND model = bucket.model
        AND calendar = bucket.calendar AND window_start_ns = bucket.window_start_ns;
    RETURN CASE WHEN is_rate THEN greatest(0, bucket.tat - bucket.clock_ns * bucket.ticks_per_ns) ELSE 0 END;
END $$
"""

EXCHANGE = """
CREATE FUNCTION quota_exchange(batch jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    me CONSTANT text := batch->>'replica';
    is_question CONSTANT integer := (batch->>'is_question')::boolean::integer;
    expiry CONSTANT interval := (batch->>'expiry_s')::numeric * interval '1 second';
    asks CONSTANT jsonb := batch->'asks';
    num_asks CONSTANT integer := jsonb_array_length(batch->'asks');
    alive text[];
    now_ns bigint;
    buckets quota_bucket[];
    rooms numeric[];
    claimed numeric[] := array_fill(0::numeric, ARRAY[num_asks]);
    is_short boolean[] := array_fill(false, ARRAY[num_asks]);
    claim jsonb;
    part jsonb;
    fits boolean;
    spare numeric;
    lead numeric;
    verdicts jsonb := '[]';
    grants jsonb := '[]';
BEGIN
    INSERT INTO replica (id, number) VALUES (me::uuid, (batch->>'number')::bigint)
    ON CONFLICT (id) DO UPDATE SET number = excluded.number, heartbeat_at = clock_timestamp()
        -- A question is about the turn before it. One that was answered already is answered again.
        WHERE replica.number < excluded.number - is_question OR replica.number = excluded.number AND is_question = 1;
    IF NOT FOUND THEN
        -- A turn that its replica has given up, or a question about one that was taken.
        RETURN jsonb_build_object('num_replicas', 0, 'is_new', false, 'verdicts', verdicts, 'grants', grants);
    END IF;
    FOR i IN 1..num_asks LOOP
        buckets[i] := quota_bucket_lock(asks->(i - 1));
    END LOOP;
    SELECT array_agg(id::text) INTO alive FROM replica
    WHERE heartbeat_at BETWEEN clock_timestamp() - expiry AND clock_timestamp() + expiry;
    now_ns := floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000;
    FOR i IN 1..num_asks LOOP
        buckets[i] := quota_bucket_report(
            buckets[i], asks->(i - 1), now_ns, me, alive, (batch->>'lease_ns')::bigint
        );
        rooms[i] := quota_bucket_room(buckets[i], asks->(i - 1));
    END LOOP;
    FOR claim IN SELECT value FROM jsonb_array_elements(batch->'claims') LOOP
        fits := true;
        FOR part IN SELECT value FROM jsonb_array_elements(claim) LOOP
            IF (part->>1)::numeric > rooms[(part->>0)::integer + 1] THEN
                fits := false;
                is_short[(part->>0)::integer + 1] := true;
            END IF;
        END LOOP;
        IF fits THEN
            FOR part IN SELECT value FROM jsonb_array_elements(claim) LOOP
                rooms[(part->>0)::integer + 1] := rooms[(part->>0)::integer + 1] - (part->>1)::numeric;
                claimed[(part->>0)::integer + 1] := claimed[(part->>0)::integer + 1] + (part->>1)::numeric;
            END LOOP;
        END IF;
        verdicts := verdicts || to_jsonb(fits);
    END LOOP;
    FOR i IN 1..num_asks LOOP
        -- Nothing is stored up where somebody was refused, nor of what is left for those who ask.
        spare := CASE WHEN is_short[i] THEN 0 ELSE least(
            (asks->(i - 1)->>'want')::numeric,
            div(greatest(0, rooms[i] - (asks->(i - 1)->>'leave')::numeric), array_length(alive, 1))
        ) END;
        lead := quota_bucket_grant(buckets[i], asks->(i - 1), claimed[i], spare, me);
        grants := grants || jsonb_build_array(jsonb_build_array(spare, rooms[i] - spare, lead));
    END LOOP;
    IF (batch->>'is_last')::boolean THEN
        -- It is gone, but its number stays: the same turn may be sent once more.
        UPDATE replica SET heartbeat_at = '-infinity' WHERE id = me::uuid;
    END IF;
    RETURN jsonb_build_object(
        'num_replicas', array_length(alive, 1), 'now_ns', now_ns, 'is_new', true,
        'verdicts', verdicts, 'grants', grants
    );
END $$
"""

# In the order in which they need each other.
FUNCTIONS = {
    "quota_bucket_lock": LOCK,
    "quota_bucket_held": HELD,
    "quota_bucket_lift": LIFT,
    "quota_bucket_report": REPORT,
    "quota_bucket_room": ROOM,
    "quota_bucket_grant": GRANT,
    "quota_exchange": EXCHANGE,
}


def upgrade() -> None:
    _create_replica()
    _create_quota_bucket()
    for definition in FUNCTIONS.values():
        op.execute(definition)


def downgrade() -> None:
    for name in reversed(FUNCTIONS):
        op.execute(f"DROP FUNCTION {name}")
    op.drop_table("quota_bucket")
    op.drop_table("replica")


def _create_replica() -> None:
    op.create_table(
        "replica",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_replica"),
        # Rewritten many times a second, in place.
        postgresql_with={"fillfactor": 50},
    )


def _create_quota_bucket() -> None:
    zero = sa.text("0")
    op.create_table(
        "quota_bucket",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("dimension", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("calendar", sa.Text(), nullable=False),
        sa.Column("window_start_ns", sa.BigInteger(), nullable=False),
        sa.Column("tat", sa.Numeric(60, 0), server_default=zero, nullable=False),
        sa.Column("ticks_per_ns", sa.Numeric(30, 0), server_default=sa.text("1"), nullable=False),
        sa.Column("settled", sa.Numeric(30, 0), server_default=zero, nullable=False),
        sa.Column("holders", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("clock_ns", sa.BigInteger(), server_default=zero, nullable=False),
        sa.Column("idle_from_ns", sa.BigInteger(), server_default=zero, nullable=False),
        sa.Column("idle_until_ns", sa.BigInteger(), server_default=zero, nullable=False),
        sa.CheckConstraint("ticks_per_ns > 0", name=op.f("ck_quota_bucket_ticks_per_ns")),
        sa.CheckConstraint("(dimension = 'BUDGET') = (calendar <> '')", name=op.f("ck_quota_bucket_calendar")),
        sa.CheckConstraint(
            "dimension IN ('REQUESTS', 'INPUT_TOKENS', 'OUTPUT_TOKENS', 'TOTAL_TOKENS', 'COST_UNITS', 'CONCURRENCY', "
            "'BUDGET')",
            name=op.f("ck_quota_bucket_dimension"),
        ),
        sa.PrimaryKeyConstraint("node", "dimension", "model", "calendar", "window_start_ns", name="pk_quota_bucket"),
        postgresql_with={"fillfactor": 70},
    )
