// Package registration registers workloads. A workload whose agent has an open stream, and names a
// WorkloadGroup in its node, has a WorkloadEntry with the health that the agent reports. The
// contents and states of the entries are those that istiod writes, so istiod and
// outrider-discoveryd can take over each other's workloads.
package registration

import (
	"context"
	"errors"
	"time"

	networking "istio.io/api/networking/v1alpha3"
)

// Store stores the WorkloadEntries of registered workloads, and a lease for each instance (each
// running outrider-discoveryd). Several instances use one store at the same time; so does istiod if
// the store is Kubernetes. So each write is conditional. All methods are safe for concurrent use.
// Get, Entries and LeaseVersions may be called at any time. They return an error while the store
// cannot be reached.
//
// Errors of methods that write:
//
//   - ErrConflict: another program has changed, created or removed the entry meanwhile. Nothing was
//     written. The caller reads the entry again.
//   - ErrInvalid: the store never accepts the entry. The caller does not try again.
//   - All others: the store cannot be used now. The write may have happened.
type Store interface {
	// Run keeps the result of Entries up to date until ctx ends, and then returns nil. It
	// reconnects after failures of the store. If it returns an error, the program ends.
	Run(ctx context.Context) error

	// Group returns the current state of a WorkloadGroup; nil: it does not exist.
	Group(ctx context.Context, key Key) (*WorkloadGroup, error)

	// Get returns the current state of an entry; nil: it does not exist. The result includes every
	// write, of any instance, that completed before the call. Get also returns WorkloadEntries that
	// nobody registered; their WorkloadGroup is "".
	Get(ctx context.Context, key Key) (*WorkloadEntry, error)
	// Create writes the entry of a workload. It returns ErrConflict if an entry with this key
	// exists.
	Create(ctx context.Context, w *Workload, c Connection) error
	// SetConnection replaces only the connection of an entry. It returns ErrConflict unless the
	// entry still has the version of e.
	SetConnection(ctx context.Context, e *WorkloadEntry, c Connection) error
	// SetHealth replaces only the health of an entry. It returns ErrConflict unless the entry still
	// has the Controller and the ConnectedAt of e; a store may compare the version instead.
	SetHealth(ctx context.Context, e *WorkloadEntry, h Health) error
	// Delete removes an entry. It returns ErrConflict unless the entry still has the version of e.
	// If the entry does not exist, it returns ErrConflict or nil.
	Delete(ctx context.Context, e *WorkloadEntry) error

	// Entries returns the entries that any program has registered (see WorkloadEntry.Group), at
	// most about half a second old. It only reads memory. It returns an error while the state is
	// unknown. The caller must not modify the entries.
	Entries() ([]*WorkloadEntry, error)

	// RenewLease creates or renews the lease of an instance.
	RenewLease(ctx context.Context, instance string, duration time.Duration) error
	// LeaseVersions returns a value for each instance with a lease, which changes with each
	// renewal. The caller measures the time between changes by its own clock, because the clocks of
	// hosts may differ. Leases do not expire by themselves.
	LeaseVersions(ctx context.Context) (map[string]string, error)
	// ReleaseLease removes a lease. It does nothing if the lease does not exist.
	ReleaseLease(ctx context.Context, instance string) error
}

// Errors that the methods of Store return.
var (
	ErrConflict = errors.New("another program has changed the entry meanwhile")
	ErrInvalid  = errors.New("the store does not accept the WorkloadEntry")
)

// Key identifies a WorkloadEntry or a WorkloadGroup.
type Key struct{ Namespace, Name string }

// String returns namespace/name.
func (k Key) String() string { return k.Namespace + "/" + k.Name }

// WorkloadGroup has the fields of an Istio WorkloadGroup that the Server uses. It must not be
// modified.
type WorkloadGroup struct {
	Key
	UID  string // UID of the object in Kubernetes; "" in other stores
	Spec *networking.WorkloadGroup
}

// Workload is the content of a new entry, which does not change later.
type Workload struct {
	Key
	Group *WorkloadGroup
	// spec of the entry; its labels are also the labels of the object
	Spec *networking.WorkloadEntry
	// annotations of the object, without those that contain the Connection
	Annotations map[string]string
}

// WorkloadEntry holds the fields of a WorkloadEntry that change, or on which the Server's decisions
// depend.
type WorkloadEntry struct {
	Key
	Version string // changes with each write of the entry
	// name of the WorkloadGroup; "": the entry was not registered by a program
	Group          string
	ServiceAccount string
	Connection
	Health *Health // last reported health; nil: none
}

// Connection describes whether a workload has a stream. Istio stores these fields in annotations of
// the WorkloadEntry. The times are in UTC.
type Connection struct {
	// name of the istiod or outrider-discoveryd that has, or had, the newest stream
	Controller     string
	ConnectedAt    time.Time // begin of the newest stream; zero: no stream is open
	DisconnectedAt time.Time // end of the last stream; zero: a stream is open
}

// Health is the health that the workload's agent has reported.
type Health struct {
	Healthy    bool
	Message    string    // reason why the workload is unhealthy
	ReportedAt time.Time // time at which the report arrived
}
