// Package epoch supervises the life of Envoy: which epoch is started when and how, when it is live,
// how it replaces the one before it, what follows a crash, and how all of them end.
//
// # State machine
//
// All decisions are made by one pure function: next(state, event) returns the next state and the
// actions to carry out. The goroutine of Supervisor.Run applies it to one event after the other.
// The executor carries out actions asynchronously (keeper, admin interface, files, timers, answers,
// conditions, log) and reports results as events. So the goroutine of Run never waits for them.
//
// An epoch (record.State) may exit in every state:
//
//	starting ──it is live──▶ live ──successor starts──▶ handing over ──successor is live──▶ draining
//	                         ▲  └──Stop──▶ stopping           │
//	                         └────────successor failed────────┘
//
// The supervisor (status):
//
//	adopting ──listed──▶ idle ◀──live or refused── attempting ◀──due── backing off
//	    ▲                │  └────request, repair───▲   ▲  └──failed, none live──▲
//	    │                └─request in an overlap─▶ waiting (older epoch idle or gone)
//	keeper lost ◀── any state              any state ──Stop──▶ stopping ──▶ finished
//
// An attempt (stage) is preparing, launching, polling, and killing if it failed. Between the first
// two it is clearing if it aborts epochs that still drain.
//
// # Numbers and lineages
//
// Envoy's hot restart works within a lineage: the processes that share a --base-id, numbered by
// --restart-epoch from 0 without a gap. If a hot restart is impossible (another hot-restart
// version, a parent that does not answer, shared memory that cannot be repaired), the next epoch
// starts side by side: it founds a lineage and opens the ports a second time (SO_REUSEPORT), and
// the old epoch is drained. Epoch numbers, which files and admin sockets have in their names, grow
// by one whatever the lineage. If no epoch is left, the next one is number 0 in lineage 0.
//
// # Invariants
//
//   - At most one attempt runs, and none while clients are connected to an older epoch, because a
//     third generation makes Envoy end the first at once. Requests that arrive in the meantime are
//     merged.
//   - After a failed attempt the live epoch still serves, and the flag in shared memory is cleared.
//     If the attempt has closed the live epoch's admin interface, an epoch with the spec that
//     worked last replaces the live one.
//   - An epoch that its child will end is not signalled unless the child fails to end it in time,
//     because a child whose parent disappears too early aborts itself.
//   - A live epoch that exits is started again: with its number while an older one is left,
//     otherwise as number 0 (an adopted epoch retains its number until Apply provides its
//     configuration).
package epoch
