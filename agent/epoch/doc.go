// Package epoch decides about Envoy's life: which epoch is started when and how, when it counts as live, what becomes of
// the one before it, what happens when one dies, and how all of them end. It does nothing itself: a Keeper starts and
// signals processes, an Admin talks to one of them, and both are handed in.
//
// # One owner
//
// All state belongs to the goroutine of Supervisor.Run. Everything that happens (a call, an exit, the outcome of a
// helper) reaches it as a function in its inbox; after each of them decide starts what can be started now and says when
// to look again. Whatever waits (validation, an epoch getting live, a drain) runs in a helper goroutine that holds no
// state and reports back the same way.
//
// # Numbers and lineages
//
// Envoy's hot restart works within a lineage: the processes that share one --base-id, numbered by --restart-epoch from 0
// without a gap. Where it cannot be had (another hot restart version, a parent that does not answer, shared memory that
// no repair unblocks) the next epoch is started side by side: it opens the ports a second time (SO_REUSEPORT), and the old
// one is drained through its admin interface once the new one is live. Such an epoch founds a new lineage: it has a
// base id of its own (Launch.Lineage is the slot the base id is derived from) and --restart-epoch 0, so that the epoch after
// it is an ordinary hot restart again. Only a binary without hot restart runs with --disable-hot-restart.
//
// Side by side has one cost that hot restart has not: a connection that waits in the accept queue of a listener when that
// listener closes is reset by the kernel, unless net.ipv4.tcp_migrate_req is 1. A hot restart hands the queue over.
//
// The number that users see does not care: it grows by one with each epoch whatever its lineage, and the restart epoch is
// the number less that of the lineage's first epoch. Files and admin sockets are named by the number, so that two lineages
// never clash. When no epoch is left the next one is number 0 in slot 0.
//
// # What holds at any time
//
//   - At most one attempt to start an epoch runs, and none while clients are connected to an older epoch: a third generation
//     makes Envoy end the first at once. Requests meanwhile are merged; the newest Spec wins and all callers learn its outcome.
//   - An attempt that fails leaves the live epoch serving, the flag that Envoy leaves in shared memory cleared, and a
//     reason. Its cost may be the live epoch's admin interface, which Envoy closes when its child starts (condition
//     admin-lost). So an epoch of what is known to be good follows at once, unless a request waits; if it fails too, another one
//     follows a minute later.
//   - An epoch that its child will end is not signalled before it is overdue: a child that misses its parent aborts itself.
//   - A live epoch that exits is started again: under the same number while an older one is left, else as number 0 (one that an
//     agent before this one started keeps its number until Apply tells its configuration: its file and socket carry it).
package epoch
