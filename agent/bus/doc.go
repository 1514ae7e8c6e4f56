// Package bus publishes the agent on the system bus: the objects of org.outrider.Agent1 with their
// properties and signals. polkit authorises changes.
//
// packaging/dbus/interfaces defines the interfaces: methods, arguments, properties and polkit
// actions are read from its XML. The agent implements Backend.
//
// Clients cannot block the agent or exhaust its memory:
//
//   - wire reads method calls before godbus, which would start a goroutine for each, and calls
//     beyond limits are refused.
//   - Reads are answered from a snapshot of the state that one goroutine refreshes.
//   - Writes to a bus that does not read have a deadline.
//   - Signals are read from the bounded list of events in condition.Registry. Changed properties
//     are found by comparing snapshots, so a slow bus loses intermediate values instead of queueing
//     them.
package bus
