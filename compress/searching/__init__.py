"""Search for the student that meets a budget: shapes are timed before they are trained, and few are trained long."""
