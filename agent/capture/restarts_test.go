package capture

import (
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// While outrider-capture is killed repeatedly, Envoy answers every new connection to a virtual
// address: connections opened while the rules are missing are redirected at the SYN's
// retransmission.
func TestHelper_KilledLosesNoConnection(t *testing.T) {
	if !inNetwork(t) {
		return
	}
	trackAll(t)
	r := newRig(t)
	// Make the kernel reuse ports soon.
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40999"),
		0); err != nil {
		t.Fatal(err)
	}
	r.startEnvoy()
	r.apply(captureAll)
	r.captures(StateOn)
	kills := 3
	if full() {
		kills = 30
	}
	answers, answered, slow := map[string]int{}, 0, 0
	var mu sync.Mutex
	var open sync.WaitGroup
	done, opened := make(chan struct{}), make(chan int)
	go func() {
		ticker := time.NewTicker(time.Second / 200)
		defer ticker.Stop()
		for n := 0; ; n++ {
			select {
			case <-done:
				opened <- n
				return
			case <-ticker.C:
			}
			open.Go(func() {
				var answer string
				began := time.Now()
				c, err := net.DialTimeout("tcp", net.JoinHostPort(virtual[0], "80"), 10*time.Second)
				if err != nil {
					answer = err.Error()
				} else {
					answer = readAnswer(c, 10*time.Second)
					_ = c.Close()
				}
				mu.Lock()
				defer mu.Unlock()
				answers[answer]++
				if answered++; answer == "15001" && time.Since(began) > 900*time.Millisecond {
					slow++
				}
			})
		}
	}()
	load := func(connections int) {
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			return answered
		}
		before := count()
		parts.Eventually(t, time.Minute, "connections are answered", func() bool {
			return count() >= before+connections
		})
	}
	for range kills {
		load(200)
		r.kill(r.helper)
		r.start()
		r.captures(StateOn)
	}
	load(600)
	close(done)
	n := <-opened
	open.Wait()
	t.Logf("%d connections, %d answered after a second SYN", n, slow)
	if answers["15001"] != n {
		t.Errorf("of %d connections: %v", n, answers)
	}
}
