package capture

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"outrider.org/outrider/scripts/parts"
)

// strictBootstrap is the bootstrap, with verbs for certificate, key and trusted certificate, of an
// Envoy that requires client certificates on the inbound port.
const strictBootstrap = `
static_resources:
  listeners:
  - name: outbound
    address: {socket_address: {address: "::", port_value: 15001, ipv4_compat: true}}
    filter_chains: [{filters: [{name: answer, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.direct_response.v3.Config,
      response: {inline_string: "15001"}}}]}]
  - name: inbound
    address: {socket_address: {address: "::", port_value: 15006, ipv4_compat: true}}
    filter_chains:
    - filters: [{name: echo, typed_config: {
        "@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}}]
      transport_socket:
        name: tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          require_client_certificate: true
          common_tls_context:
            tls_certificates:
            - {certificate_chain: {inline_string: %q}, private_key: {inline_string: %q}}
            validation_context: {trusted_ca: {inline_string: %[1]q}}
`

// strictRig is a rig whose Envoy runs with strictBootstrap.
type strictRig struct {
	*rig
	certificate tls.Certificate // of Envoy and of its clients
}

func newStrictRig(t *testing.T, kind string) *strictRig {
	t.Helper()
	var key crypto.Signer
	var err error
	if kind == "ECDSA" {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	} else {
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true,
		Subject:   pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true}
	chain, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := func(kind string, der []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	}
	certificate, secret := text("CERTIFICATE", chain), text("PRIVATE KEY", private)
	r := &strictRig{rig: newRig(t)}
	if r.certificate, err = tls.X509KeyPair(certificate, secret); err != nil {
		t.Fatal(err)
	}
	r.bootstrap = fmt.Sprintf(strictBootstrap, certificate, secret)
	r.startEnvoy()
	r.apply(captureAll)
	r.captures(StateOn)
	return r
}

const application = "198.51.100.1:80"

// plain sends plain text from the other host and returns the answer, or the error as text.
func (r *strictRig) plain() (answer string) {
	r.t.Helper()
	r.other.RunOn(r.t, func() {
		c, err := net.DialTimeout("tcp", application, 300*time.Millisecond)
		if err != nil {
			answer = err.Error()
			return
		}
		defer func() { _ = c.Close() }()
		answer = readAnswer(c, 300*time.Millisecond)
	})
	return answer
}

// mutual sends a request over mutual TLS and returns the answer, or the error as text.
func (r *strictRig) mutual(limit time.Duration) (answer string) {
	r.t.Helper()
	r.other.RunOn(r.t, func() {
		c, err := net.DialTimeout("tcp", application, limit)
		if err != nil {
			answer = err.Error()
			return
		}
		_ = c.SetDeadline(time.Now().Add(limit))
		secured := tls.Client(c, &tls.Config{Certificates: []tls.Certificate{r.certificate},
			InsecureSkipVerify: true}) //nolint:gosec // what Envoy demands is tested
		defer func() { _ = secured.Close() }()
		if _, err := secured.Write([]byte("15006")); err != nil {
			answer = err.Error()
			return
		}
		answer = readAnswer(secured, limit)
	})
	return answer
}

// holds checks for a duration that the application never receives plain text and that the rules
// stay in force. It sends plain text and mutual TLS.
func (r *strictRig) holds(duration time.Duration) {
	r.t.Helper()
	asked, plain, served := 0, 0, 0
	for began := time.Now(); time.Since(began) < duration; asked++ {
		if strings.HasPrefix(r.plain(), "here") {
			plain++
		}
		if r.mutual(300*time.Millisecond) == "15006" {
			served++
		}
	}
	r.t.Logf("%d of %d answers to plain text; %d over mutual TLS", plain, asked, served)
	if plain > 0 {
		r.t.Errorf("the application answered plain text %d of %d times", plain, asked)
	}
	log := fmt.Sprint(r.helper.Stderr)
	if _, since, _ := strings.Cut(log, "capture is on"); strings.Contains(since, "withdrawn") {
		r.t.Errorf("the rules were withdrawn: %s", log)
	}
}

// serves waits until Envoy serves mutual TLS again.
func (r *strictRig) serves(limit time.Duration) {
	r.t.Helper()
	began := time.Now()
	for answer := r.mutual(limit); answer != "15006"; answer = r.mutual(limit) {
		if time.Since(began) > limit {
			r.t.Errorf("not served %v after the load: %s", limit, answer)
			return
		}
	}
	r.t.Logf("served %v after the load", time.Since(began))
}

const floodEnv = "OUTRIDER_TEST_FLOOD"

// flood starts a process on the other host that keeps a number of connections open, each of which
// sends a ClientHello and waits for the answer.
func (r *strictRig) flood(connections int, duration time.Duration) (wait func()) {
	r.t.Helper()
	program, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	command := exec.Command("nsenter", "--net="+r.other.Namespace(), program)
	command.Env = append(os.Environ(), fmt.Sprintf("%s=%d %v", floodEnv, connections, duration))
	r.begin(command)
	return func() {
		_ = command.Wait()
		r.t.Logf("flood: %s", command.Stdout)
	}
}

// floodApplication is the main function of the process that strictRig.flood starts.
func floodApplication(arguments string) {
	number, limit, _ := strings.Cut(arguments, " ")
	connections, _ := strconv.Atoi(number)
	duration, err := time.ParseDuration(limit)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	hello := clientHello()
	end, answers := time.Now().Add(duration), make(chan int)
	for range connections {
		go func() {
			answered := 0
			for time.Now().Before(end) {
				c, err := net.DialTimeout("tcp", application, 3*time.Second)
				if err != nil {
					continue
				}
				_ = c.SetDeadline(time.Now().Add(5 * time.Second))
				_, _ = c.Write(hello)
				if n, _ := c.Read(make([]byte, 1)); n > 0 {
					answered++
				}
				_ = c.(*net.TCPConn).SetLinger(0)
				_ = c.Close()
			}
			answers <- answered
		}()
	}
	answered := 0
	for range connections {
		answered += <-answers
	}
	fmt.Println(answered, "handshakes begun in", duration)
}

func clientHello() []byte {
	client, server := net.Pipe()
	go func() {
		_ = tls.Client(client, &tls.Config{InsecureSkipVerify: true}). //nolint:gosec // sends only
										Handshake()
	}()
	hello := make([]byte, 4096)
	n, _ := server.Read(hello)
	_ = server.Close()
	return hello[:n]
}

// full reports whether tests run at full size.
func full() bool { return os.Getenv("OUTRIDER_TEST_FULL") != "" }

// Clients without certificates that keep Envoy busy with handshakes do not end the interception.
func TestFlood_HandshakesOpenNothing(t *testing.T) {
	for _, test := range []struct {
		key         string
		connections int
		full        bool
	}{{"RSA", 2000, false}, {"RSA", 4000, true}, {"ECDSA", 12000, true}} {
		if test.full && !full() {
			continue
		}
		t.Run(fmt.Sprint(test.key, test.connections), func(t *testing.T) {
			if !inNetworkAlone(t) {
				return
			}
			r := newStrictRig(t, test.key)
			r.serves(5 * time.Second)
			duration := 2 * stallLimit
			wait := r.flood(test.connections, duration)
			r.holds(duration)
			wait()
			r.serves(afterwards())
		})
	}
}

// An Envoy limited to a twentieth of a processor is slow but counts as serving.
func TestFlood_StarvedEnvoyIsServed(t *testing.T) {
	if !inNetworkAlone(t) {
		return
	}
	r := newStrictRig(t, "RSA")
	r.serves(5 * time.Second)
	group := newCPUGroup(t)
	group.move(r.envoy.Process.Pid)
	duration := 2 * stallLimit
	if full() {
		duration = 30 * time.Second
	}
	wait := r.flood(50, duration)
	pid := r.envoy.Process.Pid
	began, used := time.Now(), processorTime(t, pid)
	r.holds(time.Second)
	if used := processorTime(t, pid) - used; used > time.Since(began)/10 {
		t.Fatalf("the limit does not bite: Envoy used %v in %v", used, time.Since(began))
	}
	r.holds(duration)
	wait()
	group.lift()
	r.serves(afterwards())
}

// An Envoy that is stopped during a flood is detected.
func TestFlood_StoppedEnvoyIsFound(t *testing.T) {
	if !inNetworkAlone(t) {
		return
	}
	connections := 2000
	if full() {
		connections = 12000 // enough to fill the accept queues
	}
	r := newStrictRig(t, "ECDSA")
	r.serves(5 * time.Second)
	wait := r.flood(connections, 4*stallLimit)
	defer wait()
	r.holds(time.Second)
	parts.PauseProcess(t, r.envoy.Process.Pid)
	began := time.Now()
	parts.Eventually(t, 4*stallLimit, "the rules are withdrawn", func() bool {
		s, err := r.client.Status(t.Context())
		return err == nil && s.State == StateWithdrawn
	})
	t.Logf("found after %v", time.Since(began))
}

// afterwards is the maximum time after a load until a client is served.
func afterwards() time.Duration {
	if full() {
		return time.Second
	}
	// On a busy machine Envoy needs up to a minute for the handshakes that wait in its queues.
	return 2 * time.Minute
}
