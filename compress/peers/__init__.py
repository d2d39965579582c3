"""What a user would pick instead: each module runs the same model through another tool, to be measured beside ours."""
