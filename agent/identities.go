package agent

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/envoy"
	"outrider.org/outrider/agent/epoch"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/keeper"
	"outrider.org/outrider/agent/relay"
	"outrider.org/outrider/agent/watch"
	"outrider.org/outrider/agent/xds"
)

// adminTime bounds a request to Envoy's admin interface.
const adminTime = 2 * time.Second

// workloadIdentity manages the secrets of the workload and serves them to Envoy.
type workloadIdentity struct {
	*identity.Manager
	seal         []byte              // systemd credential that encrypts certificates; nil: none
	inUse        *relay.AddressInUse // upstream server to which the relay is connected
	acknowledged chan struct{}       // receives after an ACK of secrets, listeners or clusters
	sds          *xds.Server
	log          *slog.Logger
}

// newIdentity creates the identity manager and the SDS server.
func newIdentity(b *base, c *config.Config, e *epochParts) (*workloadIdentity, error) {
	log := b.logOf("identity")
	w := &workloadIdentity{seal: readSeal(b, c), inUse: &relay.AddressInUse{},
		acknowledged: make(chan struct{}, 1), log: log}
	w.Manager = identity.New(identity.Options{
		Settings: identitySettings(c, w.seal, w.inUse, log), Conditions: b.board, Logger: log,
		EnvoyCannotReadReason: func(file *os.File) string { return envoyMayNotHave(e.link, file) },
		UnreadableReason:      unreadable,
		ReadEnvoySecret: func(ctx context.Context, name string) ([]*x509.Certificate, error) {
			return envoysSecret(ctx, e.supervisor, name)
		},
		BundleFile: filepath.Join(c.Paths.StateDir, bundlesName),
		// No delay is needed: while only one file of a pair is replaced, the pair is not served.
		Watcher: watch.NewNotifier(watch.Delays{}, log),
	})
	var err error
	w.sds, err = xds.NewServer(xds.WithHostLimits(xds.Options{
		Source: w.Manager, SecretSubscriptionObserver: w.Manager, Logger: log, Redact: envoy.RedactMessage,
		Observer: acknowledged{
			secretObserver{xds.NewRefusalConditions(b.board,
				func(string) string { return conditionSecretRefused },
				"")}, w.acknowledged},
		ControlPlane: "outriderd " + b.options.Version,
	}))
	return w, err
}

// configure applies the [identity] table of the configuration in force.
func (w *workloadIdentity) configure(c *config.Config) {
	w.Configure(identitySettings(c, w.seal, w.inUse, w.log))
}

// prepare provides the secrets of a configuration that a reload is about to put into force.
func (w *workloadIdentity) prepare(c *config.Config) {
	w.PrepareReload(identitySettings(c, w.seal, w.inUse, w.log))
}

// envoysSecret returns the certificates of a secret as the admin interface of the newest Envoy
// shows them.
func envoysSecret(
	ctx context.Context, supervisor *epoch.Supervisor, name string,
) ([]*x509.Certificate, error) {
	epochs := supervisor.Epochs()
	if len(epochs) == 0 {
		return nil, errors.New("Envoy does not run")
	}
	ctx, cancel := context.WithTimeout(ctx, adminTime)
	defer cancel()
	return envoy.NewAdmin(epochs[len(epochs)-1].AdminAddress).Certificates(ctx, name)
}

// trust makes Envoy trust the CA certificates and SPIFFE bundles of MeshConfig, which discovery has
// validated, in addition to the provider's.
func (w *workloadIdentity) trust(authorities, bundles []string) {
	var roots []*x509.Certificate
	for _, text := range authorities {
		in := pki.PEMInput{File: "caCertificates", PEM: []byte(text)}
		if found, err := pki.ParseRoots(in, time.Now()); err == nil { // fails if all have expired
			roots = append(roots, found...)
		}
	}
	w.SetTrustBundle("MeshConfig", roots)
	w.SetBundleURLs(bundles)
}

// newSockets binds the SDS socket, which serves credentials even without an identity provider.
// Only Envoy's user, the agent's and root may connect.
func (w *workloadIdentity) newSockets(
	c *config.Config, sockets xds.SocketOptions, other *keeper.User,
) (*xds.Sockets, error) {
	sockets.Name, sockets.Server, sockets.Logger = "sds.socket", w.sds, w.log
	sockets.Users = trustedUsers(c)
	if other != nil {
		sockets.Users = append(sockets.Users, other.UID)
	}
	sockets.Path = c.SDS.Socket
	return xds.NewSockets(sockets)
}

// conditionSecretRefused is active while an Envoy refuses a secret.
const conditionSecretRefused = "secret-refused"

// secretObserver reports secrets that an Envoy refuses (xds.Observer).
type secretObserver struct{ refused *xds.RefusalConditions }

// OnNack implements xds.Observer.
func (o secretObserver) OnNack(from xds.Stream, refusal xds.Refusal) {
	for _, name := range refusal.Resources {
		o.refused.Add(from.ID, refusal.Type, []string{name},
			"Envoy refuses the secret "+name+": "+refusal.Error)
	}
}

// OnNackResolved implements xds.Observer.
func (o secretObserver) OnNackResolved(from xds.Stream, typeURL string, names []string) {
	o.refused.RemoveAccepted(from.ID, typeURL, names)
}

// OnDisconnect implements xds.Observer.
func (o secretObserver) OnDisconnect(from xds.Stream, _ error) { o.refused.RemoveStream(from.ID) }

// OnConnect, OnPush and OnAck implement xds.Observer.
func (o secretObserver) OnConnect(xds.Stream)             {}
func (o secretObserver) OnPush(xds.Stream, xds.Push)      {}
func (o secretObserver) OnAck(xds.Stream, string, string) {}
