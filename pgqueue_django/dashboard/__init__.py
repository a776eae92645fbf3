"""What the pages for people are made of, in the admin and outside."""
