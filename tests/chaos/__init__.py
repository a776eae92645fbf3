"""Real worker processes, real servers, real signals: what is promised is counted from ledgers outside the queue."""
