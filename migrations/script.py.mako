"""${message}

Rules of a step:
- It works while the previous release's code still runs: add now, remove one release later. Never rename.
- It holds no lock for long. Indexes on tables with rows: CONCURRENTLY, in a step of its own outside the transaction. New
  constraints: NOT VALID first, VALIDATE in the next step. New columns: nullable, or with a constant default.
- Rows are changed in batches, in a step of its own.
- Constraints have names (`gateway.store.base.NAMING`), the same here as in the models.
- `downgrade` undoes `upgrade`, and loses only what `upgrade` made.
- A step that was released is never edited. Files are numbered; the file's name is its revision.
"""

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
