"""When intents fall due, in seconds. Code reads them as `times.LEASE_S` when it needs them.

They are no settings: they have to fit each other, and all processes of an installation.
"""

from __future__ import annotations

# A dead worker's lease on a server expires after it, and a live worker renews its own. On a busy machine a renewal
# may come seconds late, and a lost lease costs another reconciliation.
LEASE_S = 10.0

# The sweep requests a recorded event again if no reconciliation began by then: longer than a message usually waits
# for a worker. It doubles with each failure of the server.
REDELIVER_AFTER_S = 15.0

# The longest wait between two reconciliations of a failing server: a repaired server is back within it without an
# event, and a hundred dead servers cost a worker one listing every nine seconds.
RETRY_MAX_S = 900.0

# Between two sweeps of beat. Only lost messages, retries and resyncs wait for a sweep.
SWEEP_INTERVAL_S = 5.0

# Reconciliations in a row that fail, or kill their worker, until a server's tools are hidden: a server that restarts
# fails once or twice.
QUARANTINE_AFTER = 5
