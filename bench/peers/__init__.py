"""Other job queues, measured beside ours. Imported in their environments, too: nothing but the standard library."""
