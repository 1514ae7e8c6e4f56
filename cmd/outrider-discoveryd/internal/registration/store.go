// Package registration registers workloads: while an agent whose node names a WorkloadGroup has an
// open stream, its workload has a WorkloadEntry with the health that the agent reports. Entries
// have the same contents and states as istiod's, so that istiod and outrider-discoveryd can take
// over each other's workloads.
package registration

import (
	"context"
	"errors"
	"time"

	networking "istio.io/api/networking/v1alpha3"
)

// Store holds the WorkloadEntries of registered workloads, and a lease for each instance of
// outrider-discoveryd. Several instances, and istiod if the store is Kubernetes, use one store at
// the same time, so each write is conditional. All methods are safe for concurrent use. Get,
// Entries and Leases may be called at any time; without contact to the store they return an error.
//
// Errors of methods that write:
//
//   - ErrConflict: another program has changed, created or removed the entry meanwhile. Nothing was
//     written. The caller reads the entry again.
//   - ErrInvalid: the store never accepts the entry, however often the caller tries.
//   - All others: the store cannot be used now. Whether something was written is unknown.
type Store interface {
	// Run keeps Entries up to date until ctx ends, then returns nil. It reconnects by itself. An
	// error ends the program.
	Run(ctx context.Context) error

	// Group returns the current state of a WorkloadGroup, nil if there is none.
	Group(ctx context.Context, key Key) (*Group, error)

	// Get returns the current state of an entry, nil if there is none. It includes every write, of
	// any instance, that completed before the call. An entry that was not registered is returned,
	// too, without a Group.
	Get(ctx context.Context, key Key) (*Entry, error)
	// Create writes the entry of a workload. It returns ErrConflict if there is an entry of this
	// key.
	Create(ctx context.Context, w *Workload, c Connection) error
	// Connect replaces the connection of an entry, and changes nothing else of it. It returns
	// ErrConflict unless the entry's version is still that of e.
	Connect(ctx context.Context, e *Entry, c Connection) error
	// SetHealth replaces the health of an entry, and changes nothing else of it. It returns
	// ErrConflict unless the entry is connected to the controller of e and has the ConnectedAt of
	// e; a store may require the same version instead.
	SetHealth(ctx context.Context, e *Entry, h Health) error
	// Delete removes an entry. It returns ErrConflict unless the entry's version is still that of
	// e. If the entry does not exist, Delete returns ErrConflict or nil.
	Delete(ctx context.Context, e *Entry) error

	// Entries returns all registered entries (see Entry.Group), of any program, at most about half
	// a second old. It reads memory only. It returns an error while the state is unknown. The
	// caller must not modify the entries.
	Entries() ([]*Entry, error)

	// Renew creates or renews the lease of an instance.
	Renew(ctx context.Context, instance string, duration time.Duration) error
	// Leases returns all leases: by instance, an opaque mark that changes with each renewal. Each
	// instance measures the time between changes on its own clock, so that clocks of hosts need not
	// agree. Leases do not expire by themselves.
	Leases(ctx context.Context) (map[string]string, error)
	// Release removes a lease. It does nothing if there is none.
	Release(ctx context.Context, instance string) error
}

// Errors of Store.
var (
	ErrConflict = errors.New("another program has changed the entry meanwhile")
	ErrInvalid  = errors.New("the store does not accept it")
)

// Key identifies a WorkloadEntry or a WorkloadGroup.
type Key struct{ Namespace, Name string }

// String returns namespace/name.
func (k Key) String() string { return k.Namespace + "/" + k.Name }

// Group is a WorkloadGroup. It must not be modified.
type Group struct {
	Key
	UID  string // UID of the object in Kubernetes; "" in other stores
	Spec *networking.WorkloadGroup
}

// Workload is what a store persists when a workload registers itself. It does not change later.
type Workload struct {
	Key
	Group       *Group
	Spec        *networking.WorkloadEntry // spec of the entry; the object gets its labels, too
	Annotations map[string]string         // annotations, except those of the connection
}

// Entry is the part of a WorkloadEntry that changes, or on which a decision depends.
type Entry struct {
	Key
	Version        string // opaque version, which changes with each write of the entry
	Group          string // WorkloadGroup of a registered workload; "": nobody registered the entry
	ServiceAccount string
	Connection
	Health *Health // last reported health; nil: none
}

// Connection describes the streams of a workload. Istio stores these fields in annotations. Times
// are in UTC.
type Connection struct {
	Controller     string    // instance (of istiod or outrider-discoveryd) of the newest stream
	ConnectedAt    time.Time // when the newest stream began; zero: there is none
	DisconnectedAt time.Time // when the last stream ended; zero: there is one
}

// Health is the health that the workload's agent has reported.
type Health struct {
	Healthy    bool
	Message    string    // why the workload is not healthy
	ReportedAt time.Time // when the report arrived
}
