"""pgqueue_django: durable background jobs on the PostgreSQL that a Django project already has."""
