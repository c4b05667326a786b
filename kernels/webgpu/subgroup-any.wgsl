// All subgroups of the device have LANES threads.
