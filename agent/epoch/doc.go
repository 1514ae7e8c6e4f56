// Package epoch supervises the life of Envoy: which epoch is started when and how, when it is live,
// how it replaces the one before it, what follows a crash, and how all of them end.
//
// # State machine
//
// All decisions are made by one pure function: next(state, event) returns the next state and the
// actions to carry out. The goroutine of Supervisor.Run applies it to one event after the other.
// The executor carries out actions asynchronously (keeper, admin interface, files, timers, answers,
// board, log) and reports results as events. So the loop never waits.
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
// --restart-epoch from 0 without a gap. Where it is impossible (another hot-restart version, a
// parent that does not answer, shared memory that cannot be repaired) the next epoch starts side by
// side: it founds a lineage, opens the ports a second time (SO_REUSEPORT), and the old one is
// drained. Epoch numbers grow by one whatever the lineage, and name files and admin sockets. When
// no epoch is left the next one is number 0 in lineage 0.
//
// # Invariants
//
//   - At most one attempt runs, and none while clients are connected to an older epoch: a third
//     generation makes Envoy end the first at once. Requests meanwhile are merged.
//   - A failed attempt leaves the live epoch serving and the flag in shared memory cleared. It may
//     have closed the live epoch's admin interface; then an epoch of what worked last follows.
//   - An epoch that its child will end is not signalled before it is overdue: a child that misses
//     its parent aborts itself.
//   - A live epoch that exits is started again: under its number while an older one is left, else
//     as number 0 (an adopted one keeps its number until Apply provides its configuration).
package epoch
