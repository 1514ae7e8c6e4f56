package bus

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"
)

// polkit is a fake polkit Authority. The system tests use the real one.
type polkit struct {
	conn *dbus.Conn

	mu       sync.Mutex
	answer   polkitResult
	password bool // result of the password prompt
	failure  *dbus.Error
	hold     chan struct{} // if set, replies block until it is closed
	person   chan struct{} // if set, replies to checks with a prompt block until it is closed
	missed   time.Duration // if set, the next check is denied after this time
	asked    []question
	canceled []string
}

// question is a received check, without the subject's name.
type question struct {
	Kind   string
	Action string
	Flags  uint32
}

func startPolkit(t *testing.T, d *daemon, answer polkitResult) *polkit {
	t.Helper()
	p := &polkit{conn: d.connect(), answer: answer}
	if err := p.conn.Export(p, polkitPath, polkitInterface); err != nil {
		t.Fatal(err)
	}
	if reply, err := p.conn.RequestName(polkitName, dbus.NameFlagDoNotQueue); err != nil ||
		reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("be polkit: %v %v", reply, err)
	}
	return p
}

// CheckAuthorization implements polkit's method.
func (p *polkit) CheckAuthorization(subject struct {
	Kind    string
	Details map[string]dbus.Variant
}, action string, _ map[string]string, flags uint32, _ string) (polkitResult, *dbus.Error) {
	p.mu.Lock()
	kind := subject.Kind
	if name, _ := subject.Details["name"].Value().(string); !strings.HasPrefix(name, ":") {
		kind += " without a unique name"
	}
	p.asked = append(p.asked, question{kind, action, flags})
	hold, answer, failure, missed := p.hold, p.answer, p.failure, p.missed
	p.missed = 0
	if flags&polkitInteraction != 0 {
		hold = p.person
		answer.Authorized = answer.Authorized || p.password
	}
	p.mu.Unlock()
	if missed != 0 {
		// block the whole fake: polkit processes checks sequentially as well
		time.Sleep(missed) //house:sleep a fake that takes its time
		answer = polkitResult{}
	}
	if hold != nil {
		<-hold
	}
	if answer.Details == nil {
		answer.Details = map[string]string{}
	}
	return answer, failure
}

// CancelCheckAuthorization implements polkit's method.
func (p *polkit) CancelCheckAuthorization(ticket string) *dbus.Error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.canceled = append(p.canceled, ticket)
	return nil
}

func (p *polkit) questions() []question {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

func (p *polkit) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// changing lists the calls that require authorisation, with their polkit actions.
var changing = []struct {
	object, action string
	arguments      []string
}{
	{manager, "reload", []string{managerInterface, "Reload", "t", "0"}},
	{manager, "drain", []string{managerInterface, "Drain", "t", "0"}},
	{manager, "drain", []string{managerInterface, "Undrain"}},
	{manager, "inspect", []string{managerInterface, "CheckConfig", "s", "/etc/shadow"}},
	{manager, "inspect", []string{managerInterface, "DumpConfig"}},
	{manager, "set-log-level", []string{managerInterface, "SetLogLevel", "ss", "agent", "debug"}},
	{manager + "/epoch/0", "abort", []string{epochInterface, "Abort"}},
}

func TestPolkitIsAskedForEachMethod(t *testing.T) {
	t.Parallel()
	d, a := running(t)
	p := startPolkit(t, d, polkitResult{Authorized: true})
	var want []question
	check := func(interactive string, flags ...uint32) {
		t.Helper()
		for _, c := range changing {
			d.must(nobody, append([]string{"--allow-interactive-authorization=" + interactive,
				"call", wellKnownName, c.object}, c.arguments...)...)
			for _, flag := range flags {
				want = append(want,
					question{"system-bus-name", "org.outrider.agent1." + c.action, flag})
			}
		}
	}
	check("no", 0)
	check("yes", 0)
	p.set(func() { p.answer, p.password = polkitResult{Challenge: true}, true })
	check("yes", 0, polkitInteraction)
	if diff := cmp.Diff(want, p.questions()); diff != "" {
		t.Errorf("questions:\n%s", diff)
	}
	if n := len(a.requests()); n != 3*len(changing) {
		t.Errorf("%d of %d allowed requests reached the agent", n, 3*len(changing))
	}
	for _, c := range changing {
		d.must(0, append([]string{"call", wellKnownName, c.object}, c.arguments...)...)
	}
	if len(p.questions()) != len(want) {
		t.Error("polkit was asked about root")
	}
}

func TestPolkitsNoIsKept(t *testing.T) {
	t.Parallel()
	d, a := running(t)
	refused := func(why, want string) {
		t.Helper()
		for _, c := range changing {
			out, err := d.busctl(nobody, append([]string{"--allow-interactive-authorization=no",
				"call", wellKnownName, c.object}, c.arguments...)...)
			if err == nil || !strings.Contains(out, want) {
				t.Errorf("%s: %v: %v: %s", why, c.arguments, err, out)
			}
		}
	}
	refused("no polkit", "polkit is not there, so only root may do this")
	p := startPolkit(t, d, polkitResult{})
	refused("no", "polkit does not allow org.outrider.agent1.")
	p.set(func() { p.answer.Challenge = true })
	refused("a password is needed", "needs a password")
	p.set(func() {
		p.failure = dbus.NewError("org.freedesktop.PolicyKit1.Error.NotAuthorized",
			[]any{"only the owner may ask"})
	})
	refused("polkit fails", "polkit could not decide: only the owner may ask")
	if requests := a.requests(); len(requests) != 0 {
		t.Errorf("the agent was asked %v", requests)
	}
	if got := d.must(nobody, "get-property", wellKnownName, manager, managerInterface,
		"Ready"); got != "b true" {
		t.Errorf("reading is open to everyone: %s", got)
	}
}

func TestErrorsOfPolkitHaveNames(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	p := startPolkit(t, d, polkitResult{})
	conn := d.connect()
	check := newAuthority(conn)
	allow := func(interactive bool) error {
		return check.allow(t.Context(), conn.Names()[0], "org.outrider.agent1.reload", interactive)
	}
	want := func(err error, name string) {
		t.Helper()
		if err == nil || asError(err).Name != name {
			t.Errorf("%v, want %s", err, name)
		}
	}
	want(allow(false), errorPrefix+"NotAuthorized")
	p.set(func() { p.answer.Challenge = true })
	want(allow(false), errorInteractive)
	want(allow(true), errorPrefix+"NotAuthorized")

	hold := make(chan struct{})
	p.set(func() { p.person = hold })
	check.interactive = 50 * time.Millisecond // set only now, because the replies above take longer
	want(allow(true), errorPrefix+"NotAuthorized")
	eventually(t, "the question is taken back", func() (so bool) {
		p.set(func() { so = len(p.canceled) == 1 })
		return so
	})
	p.set(func() { p.hold = hold })
	check.limit = 50 * time.Millisecond
	want(allow(false), errorPrefix+"NotAuthorized")
	want(allow(true), errorPrefix+"NotAuthorized")
	close(hold)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	want(check.allow(ctx, conn.Names()[0], "org.outrider.agent1.reload", false),
		errorPrefix+"NotAuthorized")
}

// A denial that takes as long as polkit's script timeout may be an error of polkit (see ruleTime),
// so the agent repeats the check.
func TestPolkitIsAskedAgain(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	conn := d.connect()
	check := newAuthority(conn)
	check.rules = 50 * time.Millisecond
	p := startPolkit(t, d, polkitResult{Authorized: true})
	for _, interactive := range []bool{false, true} {
		p.set(func() { p.missed = 2 * check.rules })
		if err := check.allow(t.Context(), conn.Names()[0], "org.outrider.agent1.reload",
			interactive); err != nil {
			t.Errorf("interactive %v: %v", interactive, err)
		}
	}
	if n := len(p.questions()); n != 4 {
		t.Errorf("%d questions, want 2 for each of 2", n)
	}
}

// TestASlowPolkitHoldsUpNobody checks that pending password prompts of one user block neither
// readers nor root.
func TestASlowPolkitHoldsUpNobody(t *testing.T) {
	t.Parallel()
	d, a := running(t)
	p := startPolkit(t, d, polkitResult{Authorized: true})
	hold := make(chan struct{})
	p.set(func() { p.hold = hold })
	var waiting sync.WaitGroup
	var mu sync.Mutex
	busy, done := 0, 0
	for range 2 * mostOfUser {
		waiting.Go(func() {
			out, err := d.busctl(nobody, "call", wellKnownName, manager,
				managerInterface, "Undrain")
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				done++
			case strings.Contains(out, "too many requests of this user"):
				busy++
			default:
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	eventually(t, "the limit of one user is reached", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return busy == mostOfUser
	})
	if len(a.requests()) != 0 {
		t.Error("somebody was let in without an answer of polkit's")
	}
	d.must(0, "call", wellKnownName, manager, managerInterface, "Reload", "t", "0")
	d.must(nobody, "get-property", wellKnownName, manager, managerInterface, "State")
	close(hold)
	waiting.Wait()
	if done != mostOfUser {
		t.Errorf("%d of those that waited were let in, want %d", done, mostOfUser)
	}
}
