package systemtest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"outrider.org/outrider/scripts/parts"
)

// holdEnvironment is an environment variable with a number. It makes this program run hold.
const holdEnvironment = "OUTRIDER_TEST_HOLD"

// hold opens count connections to each of three sockets of the agent, and eight to the bus, on each
// of which it always has 100 pending calls to the agent. Then it prints a line and waits until it
// is killed.
func hold(count int) error {
	var all []net.Conn
	for range count {
		for _, address := range []string{"tcp 127.0.0.1:15020", "tcp 127.0.0.1:15000",
			"unix /run/outrider/outrider.sock"} {
			network, where, _ := strings.Cut(address, " ")
			c, err := net.Dial(network, where)
			// the socket's backlog is full, so wait for the agent to accept connections
			if errors.Is(err, syscall.EAGAIN) {
				parts.Poll(time.Hour, func() bool {
					c, err = net.Dial(network, where)
					return !errors.Is(err, syscall.EAGAIN)
				})
			}
			if err != nil {
				return fmt.Errorf("connection %d: %w", len(all), err)
			}
			all = append(all, c)
		}
	}
	for range 8 {
		conn, err := dbus.ConnectSystemBus()
		if err != nil {
			return err
		}
		calls := make(chan *dbus.Call, 256)
		ask := func() {
			conn.Object(busName, busObject).Go("org.freedesktop.DBus.Properties.GetAll", 0, calls,
				busManager)
		}
		for range 100 {
			ask()
		}
		go func() {
			for range calls {
				ask()
			}
		}()
	}
	fmt.Println("held", len(all))
	select {}
}

// While one user holds hundreds of connections to each of the agent's sockets, the agent still
// responds to other users, and to health checks of any user, within five seconds.
func TestConnections_OfOneUserKeepNobodyOut(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := NewBusHost(t, filepath.Dir(self)+":/opt/self")
	for _, count := range []int{256, 1000} {
		unit := fmt.Sprintf("hold%d", count)
		h.MustRun(t, "systemd-run", "--quiet", "--unit="+unit, "-p", "User=nobody", "-p",
			"LimitNOFILE=8192",
			"-E", holdEnvironment+"="+strconv.Itoa(count), "/opt/self/"+filepath.Base(self))
		h.Eventually(time.Minute, "the connections are held", func() bool {
			log := h.Journal("-u", unit, "-o", "cat")
			if strings.Contains(log, "status=1") {
				t.Fatalf("the connections were not opened: %s", log)
			}
			return strings.Contains(log, fmt.Sprintf("held %d", 3*count))
		})
		for name, command := range map[string]string{
			"health check": "curl -fsS -m 10 -o /dev/null " +
				"http://127.0.0.1:15020/healthz/ready",
			"health check through 15021": "curl -fsS -m 10 -o /dev/null " +
				"http://127.0.0.1:15021/healthz/ready",
			"health check of nobody": "setpriv --reuid=nobody --clear-groups curl -fsS -m 10 " +
				"-o /dev/null http://127.0.0.1:15020/healthz/ready",
			"admin view":     "curl -fsS -m 10 -o /dev/null http://127.0.0.1:15000/config_dump",
			"status of root": "outrider status",
			"reload over D-Bus": "busctl call " + strings.Join([]string{busName, busObject,
				busManager}, " ") + " Reload t 1",
		} {
			out := h.RunScript("a=$(date +%s%N); " + command +
				" >/dev/null || exit 1; echo $((($(date +%s%N) - a) / 1000))")
			micros, err := strconv.Atoi(strings.TrimSpace(out))
			t.Logf("beside %d connections: %s: %s", count, name,
				time.Duration(micros)*time.Microsecond)
			if limit := 5 * time.Second; err != nil ||
				time.Duration(micros)*time.Microsecond > limit {
				t.Errorf("beside %d connections: %s: %s, %v", count, name, out, err)
			}
		}
		h.MustRun(t, "systemctl", "stop", unit)
	}
}
