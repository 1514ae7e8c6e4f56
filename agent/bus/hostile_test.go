package bus

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"outrider.org/outrider/agent/api"
)

// flood sends calls at the maximum rate over several connections. stop ends it and returns the
// numbers of replies and of Busy errors.
func flood(t *testing.T, connect func() *dbus.Conn, connections int, method string,
	arguments ...any) (stop func() (answered, busy int), refused *atomic.Int64) {
	t.Helper()
	var ok atomic.Int64
	refused = new(atomic.Int64)
	var group sync.WaitGroup
	ending := make(chan struct{})
	for range connections {
		conn := connect()
		group.Go(func() {
			pending := make(chan *dbus.Call, 256)
			for range cap(pending) / 2 {
				conn.Object(wellKnownName, managerPath).Go(method, 0, pending, arguments...)
			}
			for {
				var call *dbus.Call
				select {
				case call = <-pending:
				case <-ending: // a refused call may get no reply
					return
				}
				switch {
				case call.Err == nil:
					ok.Add(1)
				case isNamed(call.Err, errorPrefix+nameBusy):
					refused.Add(1)
				case isNamed(call.Err, errorUnknownMethod):
					ok.Add(1)
				case !isNamed(call.Err,
					"org.freedesktop.DBus.Error.LimitsExceeded"): // from the bus itself
					t.Errorf("flooding: %v", call.Err)
					return
				}
				conn.Object(wellKnownName, managerPath).Go(method, 0, pending, arguments...)
			}
		})
	}
	return func() (int, int) {
		close(ending)
		group.Wait()
		return int(ok.Load()), int(refused.Load())
	}, refused
}

func TestAFloodHoldsUpNobody(t *testing.T) {
	d, a := running(t)
	before := runtime.NumGoroutine()
	stop, _ := flood(t, d.connect, 4, propertiesName+".GetAll", managerInterface)
	most := 0
	began := time.Now()
	for i := range 10 {
		sent := time.Now()
		a.change(func(s *api.Status) { s.LastReload = &api.LastReload{Reasons: []string{fmt.Sprint(i)}} })
		// generous, because the test's threads may be suspended for seconds
		if spent := time.Since(sent); spent > 10*time.Second {
			t.Errorf("a change took the agent %s", spent)
		}
		eventually(t, "root is answered", func() bool {
			out, err := d.busctl(0, "call", wellKnownName, manager, managerInterface, "Undrain")
			if err != nil && !strings.Contains(out, "too many calls") {
				t.Fatalf("%v: %s", err, out)
			}
			return err == nil
		})
		most = max(most, runtime.NumGoroutine()-before)
	}
	answered, busy := stop()
	a.set(func() {
		t.Logf("%d answered, %d refused, %d more goroutines, %d looks in %s", answered, busy, most,
			a.looks, time.Since(began))
		if perSecond := float64(a.looks) / time.Since(began).Seconds(); perSecond > 60 {
			t.Errorf(
				"%.0f looks at the agent in a second: readers are to be answered from what is known",
				perSecond)
		}
	})
	if answered == 0 {
		t.Error("nobody was answered")
	}
	// Most of these goroutines belong to the test's client: godbus starts one for each pending
	// call. The agent starts few.
	if limit := 4*256 + 200; most > limit {
		t.Errorf("%d more goroutines", most)
	}
}

// daemonUser is a second user that exists on every machine, because the bus rejects unknown ones.
const daemonUser = 1

// Eight busy connections of one user do not affect root and other users.
func TestFlood_OfOneUserLeavesOthersAlone(t *testing.T) {
	d, _ := running(t)
	as := func(uid int) func() *dbus.Conn { return func() *dbus.Conn { return d.connectAs(uid) } }
	for _, method := range []string{propertiesName + ".GetAll", managerInterface + ".Nonsense"} {
		t.Run(method, func(t *testing.T) {
			stop, refused := flood(t, as(nobody), 8, method, managerInterface)
			eventually(t, "the flood is refused", func() bool { return refused.Load() > 0 })
			slowest := time.Duration(0)
			limited, cancel := context.WithTimeout(t.Context(), 2*testTime)
			defer cancel()
			for i := range 10 {
				// new connections, whose user the agent must look up
				root, other := d.connect(), as(daemonUser)()
				sent := time.Now()
				if err := root.Object(wellKnownName, managerPath).CallWithContext(limited,
					managerInterface+".Reload", 0, uint64(0)).Err; err != nil {
					t.Errorf("reload %d of root: %v", i, err)
				}
				slowest = max(slowest, time.Since(sent))
				if err := other.Object(wellKnownName, managerPath).CallWithContext(limited,
					peerName+".Ping", 0).Err; err != nil {
					t.Errorf("call %d of another user: %v", i, err)
				}
				_, _ = root.Close(), other.Close()
			}
			answered, busy := stop()
			t.Logf(
				"the slowest reload of root took %s beside %d calls that were answered and %d refused",
				slowest, answered, busy)
		})
	}
}

func callTo(path dbus.ObjectPath, kind, member string, body ...any) *dbus.Message {
	message := &dbus.Message{Type: dbus.TypeMethodCall, Flags: dbus.FlagNoReplyExpected, Body: body,
		Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldDestination: dbus.MakeVariant(wellKnownName),
			dbus.FieldPath:        dbus.MakeVariant(path),
			dbus.FieldInterface:   dbus.MakeVariant(kind),
			dbus.FieldMember:      dbus.MakeVariant(member)}}
	if len(body) > 0 {
		message.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(body...))
	}
	return message
}

func TestWhatMakesNoSenseIsPassedOver(t *testing.T) {
	d, a := running(t)
	conn := d.connect()
	descriptors := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	nested := dbus.MakeVariant("bottom")
	for range 20 {
		nested = dbus.MakeVariant(nested)
	}
	before := descriptors()
	for _, message := range []*dbus.Message{
		// the argument exceeds largestMessage
		callTo(managerPath, managerInterface, "Reload", strings.Repeat("x", 16<<20)),
		callTo(managerPath, managerInterface, "Reload", make([]dbus.ObjectPath, 0)),
		callTo(managerPath, propertiesName, "Set", managerInterface, "Version", nested),
		callTo(managerPath, managerInterface, "Reload", map[string]dbus.Variant{"a": nested}),
		callTo(managerPath, managerInterface, "Reload", dbus.UnixFD(null.Fd()),
			dbus.UnixFD(null.Fd())),
		callTo("/", managerInterface, strings.Repeat("m", 255)),
		callTo(managerPath+dbus.ObjectPath(strings.Repeat("/a", 5000)), managerInterface, "Reload"),
	} {
		conn.Send(message, nil)
		signal := *message
		signal.Type = dbus.TypeSignal
		conn.Send(&signal, nil)
	}
	if err := conn.Object(wellKnownName, managerPath).Call(peerName+".Ping", 0).Err; err != nil {
		t.Errorf("the agent does not answer after nonsense: %v", err)
	}
	if now := descriptors(); now > before {
		t.Errorf("%d more open files than before", now-before)
	}
	if _, lost := a.condition(conditionUnavailable); lost || len(a.requests()) != 0 {
		t.Errorf("the connection was lost (%v), or the agent was asked %v", lost, a.requests())
	}
}

func TestALongMessageIsSkippedAndTheNextIsRead(t *testing.T) {
	var wireBytes bytes.Buffer
	for _, length := range []int{largestMessage * 3, 10} {
		if err := encode(&wireBytes, callTo(managerPath, managerInterface, "Reload",
			strings.Repeat("x", length))); err != nil {
			t.Fatal(err)
		}
	}
	got := readAllFrames(t, wireBytes.Bytes())
	if len(got) != 1 || len(got[0].Body[0].(string)) != 10 {
		t.Errorf("read were %v", got)
	}
}
