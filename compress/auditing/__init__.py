"""What labelled rows say about themselves before anything is trained: wrong labels, copies, classes that look alike."""
