"""What layers are made of: the interface, shapes, the linear recurrence."""
