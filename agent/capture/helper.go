package capture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"outrider.org/outrider/agent/fdstore"
	"outrider.org/outrider/agent/repeat"
)

// options configures outrider-capture.
type options struct {
	instance string
	folder   string // of the state file
	users    Users
	version  string

	resolvConf string
	log        io.Writer
}

// helper owns the tables. Its fields belong to the goroutine of run.
type helper struct {
	options
	check envoyCheck
	memory
	rules *ownerSocket // owns the table of rules; nil: no rules are in force
	// owns the table that keepNAT creates for established connections; nil: there is none
	nat   *ownerSocket
	plain *ownerSocket   // for tables without owner
	store *fdstore.Store // holds a duplicate of nat's socket, so that the table remains

	installed  installed
	left       time.Time // when the last agent disconnected; zero: an agent's DNS proxy answers
	gone       time.Time // when Envoy was first seen not to listen; zero: it listens
	looked     time.Time // last check of captured connections and the rejecting table
	reported   time.Time // last notification of systemd's watchdog
	forget     forget
	status     Status
	logged     repeat.Limiter
	generation int // grows with each change of the settings or of the running units
	unowned    bool
	dns        dnsCapture
	units      *unitWatch // nil: no settings have named units
	running    []Unit
	calls      chan call
	clients    map[*connection]bool
}

// installed records from which helper.generation, families and rules the installed tables were
// made.
type installed struct {
	// generation from which the table of rules, or the nat table, was made; 0: not installed
	generation, nat int
	closed          int // of the table that rejects connections, or one of the constants below
	families        AddressFamilies
	table           *Table
}

// Special values of installed.closed, which otherwise is a generation of the settings.
const (
	closedUnknown = 0 // an earlier outrider-capture may have left the table
	closedRemoved = -1
	closedLeft    = -2 // an earlier outrider-capture left the table, and its settings are lost
)

// call is a request that outrider-capture received over a connection.
type call struct {
	request
	from *connection
}

func newHelper(o options) (*helper, error) {
	h := &helper{options: o, left: time.Now(), check: envoyCheck{user: o.users.Envoy}, generation: 1,
		calls: make(chan call), clients: map[*connection]bool{}, dns: dnsCapture{stale: true}}
	h.status = Status{State: StateOff, DNS: DNSStatus{State: StateOff}, Users: o.users,
		Version: o.version,
		PID:     os.Getpid(), Since: time.Now()}
	var err error
	if h.plain, err = newOwnerSocket(); err != nil {
		return nil, err
	}
	if err := h.memory.load(h.path()); err != nil && !errors.Is(err, os.ErrNotExist) {
		h.logf("cannot read the state: %v", err)
		h.installed.closed = closedLeft // without settings, continue to reject what was rejected
	}
	// plain deletes the table that an earlier run of outrider-capture left: before Linux 5.12
	// tables have no owner.
	h.plain.owned = false
	if err := h.plain.remove(TableName(h.instance)); err != nil && !errors.Is(err, unix.EPERM) {
		return nil, err
	}
	return h, nil
}

func (h *helper) path() string { return filepath.Join(h.folder, "state.json") }

// logf writes a line to the log, unless it repeats an earlier one too often.
func (h *helper) logf(format string, arguments ...any) {
	h.logged.Fprintf(h.log, format, arguments...)
}

// run serves until ctx ends or a client stops outrider-capture. It calls replace for each upgrade.
func (h *helper) run(ctx context.Context, replace func(), upgrade <-chan os.Signal) {
	h.findUnits()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			h.tick(time.Now())
			timer.Reset(h.interval())
		case <-upgrade:
			replace()
		case <-h.unitsChanged():
			h.findUnits()
			h.tick(time.Now())
		case c := <-h.calls:
			if c.Operation == opStop {
				h.stop()
				return
			}
			h.answer(c)
		}
	}
}

// interval returns the time until the next check.
func (h *helper) interval() time.Duration {
	switch {
	case h.rules != nil && h.check.gone:
		return checkFast
	case h.check.stall.waited > 0, h.dns.rules != nil && (h.dns.silent || len(h.clients) == 0):
		return checkStall
	}
	return checkEvery
}

func (h *helper) answer(c call) {
	if c.Operation == "" { // a connection was opened or closed
		if h.clients[c.from] {
			if delete(h.clients, c.from); len(h.clients) == 0 && h.left.IsZero() {
				h.left = time.Now()
			}
			h.tick(time.Now()) // the agent's DNS proxy may have ended with the connection
			return
		}
		h.clients[c.from] = true
		return
	}
	if err := h.do(c.request); err != nil {
		c.from.send(response{Number: c.Number, Error: err.Error()})
		return
	}
	h.tick(time.Now())
	status := h.status
	status.Settings = h.Settings
	status.Counters = h.counters()
	c.from.send(response{Number: c.Number, Status: &status})
}

// counters returns the counters of the rules in force. Of the DNS table it returns only that of
// redirected queries: queries that are not redirected match the exclusions of both tables, so they
// would count twice.
func (h *helper) counters() []Counter {
	read := func(socket *ownerSocket, table *Table) []Counter {
		if socket == nil {
			return nil
		}
		all, err := socket.counters(table)
		if err != nil {
			h.logf("cannot read counters: %v", err)
		}
		return all
	}
	return append(read(h.rules, h.installed.table), slices.DeleteFunc(
		read(h.dns.rules, h.dns.table), func(c Counter) bool { return c.Rule != keyDNS })...)
}

func (h *helper) do(r request) error {
	next := h.memory
	switch {
	case r.Protocol != protocolVersion:
		return fmt.Errorf("protocol version %d is not supported; this outrider-capture has "+
			"version %d", r.Protocol, protocolVersion) // clients match the prefix "protocol "
	case r.Operation == opStatus:
		return nil
	case r.Operation == opApply && r.Settings != nil:
		if err := r.Settings.Validate(); err != nil {
			return err
		}
		if r.Settings.Instance != h.instance {
			return fmt.Errorf("the settings are those of instance %q; this outrider-capture "+
				"serves instance %q",
				r.Settings.Instance, h.instance)
		}
		same := *r.Settings
		// AgentPorts and InboundOnly are not keys of [capture]: a change starts no trial
		if h.Settings != nil {
			same.AgentPorts, same.InboundOnly = h.Settings.AgentPorts, h.Settings.InboundOnly
		}
		if same.TrialDuration > 0 && !reflect.DeepEqual(&same, h.Settings) {
			next.try(r.Settings.TrialDuration)
		} else if same.TrialDuration == 0 && h.Settings != nil && h.Settings.TrialDuration > 0 {
			next.endTrial() // the trial was removed from the configuration
		}
		next.Settings, next.Withdrawn = r.Settings, false
	case h.Settings == nil:
		return errNoSettings
	case r.Operation == opWithdraw:
		next.Withdrawn = true
	case r.Operation == opTry && r.For > 0:
		next.try(r.For)
	case r.Operation == opConfirm:
		next.endTrial()
	default:
		return fmt.Errorf("invalid request %q", r.Operation)
	}
	if err := next.save(h.path()); err != nil {
		return fmt.Errorf("cannot persist the settings: %w", err)
	}
	if h.Settings != nil && h.Settings.PreserveClientAddress &&
		!next.Settings.PreserveClientAddress {
		if err := policyRoutes(false); err != nil {
			h.logf("%v", err)
		}
	}
	h.memory = next
	h.generation++
	h.findUnits()
	return nil
}

// tick changes the kernel's tables to the wanted state.
func (h *helper) tick(now time.Time) {
	next := Status{State: StateOff, Users: h.users, Version: h.version, PID: os.Getpid(),
		Units: h.running}
	if !h.Until.IsZero() && bootTime() > h.Ends {
		h.Until, h.Expired = time.Time{}, true
		if err := h.save(h.path()); err != nil {
			h.logf("cannot persist the end of the trial: %v", err)
		}
	}
	if h.Settings != nil {
		next.State, next.Reason, next.CapturedFamilies = h.reconcileRules(now)
	} else {
		h.withdraw() // outrider-capture's program before an upgrade may have installed rules
	}
	next.RulesOutliveHelper = h.unowned && h.rules != nil
	next.Until = h.Until
	if err := h.reconcileClosed(now); err != nil {
		next.Reason = strings.TrimPrefix(fmt.Sprintf("%s; cannot change what is refused: %v",
			next.Reason, err), "; ")
	}
	if h.installed.closed == h.generation {
		next.OutboundRejected, next.InboundRejected = h.closes()
	}
	if next.State == StateWithdrawn && next.InboundRejected {
		next.State = StateClosed
	}
	next.DNS = h.reconcileDNS(now)
	h.forgetUnanswered(now)
	h.reconcileNAT(now)
	h.publish(now, next)
	if now.Sub(h.reported) >= checkEvery {
		h.reported = now
		h.notify(daemon.SdNotifyWatchdog)
	}
}

func (h *helper) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		h.logf("notify systemd: %v", err)
	}
}

// quit removes what the kernel does not remove when outrider-capture ends. The table that rejects
// connections remains: only stop and outrider cleanup delete it.
func (h *helper) quit() {
	if h.unowned {
		h.withdraw()
		h.dropDNS()
		h.dropNAT()
	}
}

// stop removes all tables and forgets the settings.
func (h *helper) stop() {
	h.withdraw()
	if h.Settings != nil && h.Settings.PreserveClientAddress {
		if err := policyRoutes(false); err != nil {
			h.logf("%v", err)
		}
	}
	_, closed := h.closes()
	settings := h.Settings
	h.memory, h.installed.closed = memory{}, closedUnknown
	h.dropDNS()
	if err := h.reconcileClosed(time.Now()); err != nil {
		h.logf("connections may still be refused: %v", err)
	}
	h.dropNAT()
	if err := os.Remove(h.path()); err != nil && !errors.Is(err, os.ErrNotExist) {
		h.logf("cannot forget the settings: %v", err)
	}
	h.status.State = StateOff
	if closed {
		h.logf("inbound connections go direct, past Envoy: %s", openPorts(settings, h.users))
	}
}

// publish sends a status to all clients if it differs from the last one.
func (h *helper) publish(now time.Time, next Status) {
	was := h.status
	was.Since, next.Since = time.Time{}, time.Time{}
	if reflect.DeepEqual(was, next) {
		return
	}
	if was.State != next.State || was.OutboundRejected != next.OutboundRejected ||
		was.InboundRejected != next.InboundRejected {
		h.logf("capture is %s%s", next.State, because(next.Reason))
	}
	if was.DNS.State != next.DNS.State {
		h.logf("redirection of DNS is %s%s", next.DNS.State, because(next.DNS.Reason))
	}
	if next.Since = h.status.Since; was.State != next.State {
		next.Since = now
	}
	h.status = next
	for c := range h.clients {
		status := h.status
		c.send(response{Status: &status})
	}
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}
