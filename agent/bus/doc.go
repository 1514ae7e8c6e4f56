// Package bus is the agent on the system bus: the objects of org.outrider.Agent1, their properties and signals, and polkit,
// which is asked who may change something.
//
// The interfaces are those of packaging/dbus/interfaces: what they say about methods, arguments, properties and the actions of
// polkit is read from there and served. What the agent does behind them is the Backend interface; this package knows nothing
// of its inside.
//
// Nobody on the bus can hold up the agent. Calls are taken off the wire before godbus, which would start a goroutine for each,
// and are refused beyond limits; reading is answered from a copy of the state that one goroutine keeps; writes to a bus that
// does not read have a deadline; signals are read from the board's events, which are bounded, and changed properties are found
// by comparing with what was told last, so that a slow bus costs clients some intermediate values and nobody memory.
package bus
