// Package ca is the certificate authority of outrider-discoveryd: Istio's IstioCertificateService.
//
// A Server signs certificates for the SPIFFE IDs of its authenticated callers, with a root or an
// intermediate from files:
//
//	certificate or token → Options.Authenticate → rates → request → authority → chain and roots
//
// If the files change, the Server uses them once they are valid and belong together; until then the
// previous signing certificate stays in use. The private key exists only in its file and in the
// memory of an authority: no message contains it, and no method returns it.
package ca

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	securityv1 "istio.io/api/security/v1alpha1"

	"outrider.org/outrider/agent/condition"
	"outrider.org/outrider/agent/repeat"
	"outrider.org/outrider/agent/watch"
	"outrider.org/outrider/agent/xds"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/auth"
	"outrider.org/outrider/cmd/outrider-discoveryd/internal/rates"
)

// conditionRefused is active while the files of [ca] cannot be used. The previous content of the
// files stays in use.
const conditionRefused = "ca-refused"

// Settings are the settings of [ca] in the configuration.
type Settings struct {
	// file with the signing certificate, followed by the intermediates that issued it
	CertFile string
	KeyFile  string
	// file with the roots that clients trust; "": the certificate in CertFile is the root
	RootFile string
	MaxTTL   time.Duration
}

// Options configures a Server.
type Options struct {
	// Authenticate returns the identity of a client, or an error if the client has none.
	Authenticate func(client xds.Peer) (auth.Caller, error)
	// WaitForRateLimit blocks until a client may proceed with a call. It is called twice per call:
	// before the client is authenticated (known is false) and after. The error is a gRPC status.
	WaitForRateLimit func(ctx context.Context, client xds.Peer, known bool) error
	// TrustClientRoots makes the listener accept client certificates that these roots issued,
	// instead of the roots of the previous call. It is called before the Server signs with a new
	// authority.
	TrustClientRoots func(roots []*x509.Certificate)
	Watcher          *watch.Notifier
	Conditions       *condition.Registry
	Logger           *slog.Logger
}

// Server signs certificates for authenticated clients. It is safe for concurrent use.
type Server struct {
	options Options
	current atomic.Pointer[authority]
	maxTTL  atomic.Int64
	rates   rates.Limiter
	limiter repeat.Limiter
	issued  atomic.Uint64
	refused atomic.Uint64

	mu       sync.Mutex
	settings Settings
	longest  time.Duration // longest MaxTTL since the start
	stop     func()        // stops watching the files
	retired  []past        // roots of replaced authorities
}

// New returns a Server that signs with the files in the settings, and watches them. Options.Watcher
// must run.
func New(settings Settings, options Options) (*Server, error) {
	s := &Server{options: options, stop: func() {}}
	read, err := readAuthority(settings, time.Now())
	if err != nil {
		return nil, err
	}
	s.use(read)
	s.Configure(settings)
	return s, nil
}

// Register registers IstioCertificateService with a gRPC server. It registers the method as a
// stream, which makes no difference for clients. Otherwise gRPC would read the whole request, of up
// to 16 MiB and without a time limit, before it calls the method.
func (s *Server) Register(registrar grpc.ServiceRegistrar) {
	service := securityv1.IstioCertificateService_ServiceDesc
	registrar.RegisterService(&grpc.ServiceDesc{ServiceName: service.ServiceName,
		HandlerType: (*any)(nil), Metadata: service.Metadata,
		Streams: []grpc.StreamDesc{{StreamName: service.Methods[0].MethodName,
			Handler: s.createCertificate, ServerStreams: true}}}, s)
}

// Configure replaces the settings. If the new files cannot be used, the current authority stays in
// use.
func (s *Server) Configure(settings Settings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.maxTTL.Store(int64(settings.MaxTTL))
	s.longest = max(s.longest, settings.MaxTTL)
	s.stop()
	s.settings = settings
	paths := []string{settings.CertFile, settings.KeyFile}
	if settings.RootFile != "" {
		paths = append(paths, settings.RootFile)
	}
	s.stop = s.options.Watcher.Watch(paths, s.reread)
}

// reread reads the files after a change, and uses them if they are valid.
func (s *Server) reread() {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, err := readAuthority(s.settings, time.Now())
	if err != nil {
		s.options.Conditions.Raise(conditionRefused, condition.Error,
			"the files of [ca] are not usable, those read before stay: "+err.Error())
		return
	}
	s.options.Conditions.Clear(conditionRefused)
	before := s.current.Load()
	if before.equal(next) {
		return
	}
	s.use(next)
	s.retire(before, time.Now())
	s.options.Logger.Info("CA uses new signing certificate",
		"serial", next.certificate.SerialNumber.Text(16),
		"subject", next.certificate.Subject.String(), "not_after", next.notAfter,
		"roots", len(next.roots))
}

func (s *Server) use(next *authority) {
	s.options.TrustClientRoots(next.roots)
	s.current.Store(next)
}

// createCertificate implements CreateCertificate. It does not read the request before the caller is
// authenticated.
func (s *Server) createCertificate(_ any, stream grpc.ServerStream) error {
	client := xds.PeerFromContext(stream.Context())
	caller, err := s.admit(stream.Context(), client)
	if err != nil {
		return s.refuse(client, caller, err)
	}
	in := &securityv1.IstioCertificateRequest{}
	if err := stream.RecvMsg(in); err != nil {
		return err
	}
	out, err := s.issue(client, caller, in)
	if err != nil {
		return err
	}
	return stream.SendMsg(out)
}

// admit authenticates the client of a call, and waits until the client may proceed. It returns an
// error if the identity makes too many requests.
func (s *Server) admit(ctx context.Context, client xds.Peer) (auth.Caller, error) {
	if err := s.options.WaitForRateLimit(ctx, client, false); err != nil {
		return auth.Caller{}, err
	}
	caller, err := s.options.Authenticate(client)
	if err == nil {
		err = s.options.WaitForRateLimit(ctx, client, true)
	}
	if err == nil && !s.rates.Allow(caller.String(), time.Now()) {
		err = status.Errorf(codes.ResourceExhausted,
			"%s makes more than %d requests a second: try again", caller, rates.RequestsPerSecondPerIdentity)
	}
	return caller, err
}

// issue issues a certificate for the identity of a caller.
func (s *Server) issue(client xds.Peer, caller auth.Caller,
	in *securityv1.IstioCertificateRequest) (*securityv1.IstioCertificateResponse, error) {
	public, err := publicKey(in.GetCsr(), caller.String())
	if err != nil {
		code := codes.InvalidArgument
		if errors.Is(err, errOtherIdentity) {
			code = codes.PermissionDenied
		}
		return nil, s.refuse(client, caller, status.Error(code, auth.ShortenForLog(err.Error())))
	}
	result, err := s.current.Load().sign(public, caller.String(), time.Now(),
		s.ttl(in.GetValidityDuration()))
	if err != nil {
		return nil, s.refuse(client, caller, status.Error(codes.Unavailable, err.Error()))
	}
	s.issued.Add(1)
	s.options.Logger.Info("issued certificate", "serial", result.serial.Text(16),
		"identity", caller.String(), "caller", client.Address, "credential", caller.CredentialDescription,
		"reason", "the caller's own identity", "not_after", result.notAfter)
	return &securityv1.IstioCertificateResponse{CertChain: result.chain}, nil
}

// ttl returns the validity of a certificate for a requested number of seconds. For 0 it is MaxTTL.
func (s *Server) ttl(seconds int64) time.Duration {
	longest := time.Duration(s.maxTTL.Load())
	if seconds <= 0 || seconds >= int64(longest/time.Second) {
		return longest
	}
	return time.Duration(seconds) * time.Second
}

// unknownLimits limits the log lines about callers without an identity, per address (IPv6: /64), or
// per user of this host. All refusals of callers with an identity are logged, because their rate is
// limited.
var unknownLimits = repeat.Limits{PerClass: 10, PerSubject: 30}

// refuse counts and logs a refused request, and returns the gRPC status.
func (s *Server) refuse(client xds.Peer, caller auth.Caller, err error) error {
	s.refused.Add(1)
	refusal := status.Convert(err)
	identity, omitted := "", 0
	if caller == (auth.Caller{}) || refusal.Code() == codes.ResourceExhausted {
		var ok bool
		omitted, ok = s.limiter.Allow(time.Now(), client.ClientKey().String(),
			repeat.ErrorClass(refusal.Message()), unknownLimits)
		if !ok {
			return refusal.Err()
		}
	}
	if caller != (auth.Caller{}) {
		identity = caller.String()
	}
	fields := []any{"identity", identity, "caller", client.Address,
		"credential", caller.CredentialDescription, "reason", refusal.Message()}
	if omitted > 0 {
		fields = append(fields, "omitted", omitted)
	}
	var unauthenticated *auth.Refusal
	if errors.As(err, &unauthenticated) && unauthenticated.Cause != nil {
		fields = append(fields, "cause", unauthenticated.Cause)
	}
	s.options.Logger.Warn("refused certificate request", fields...)
	return refusal.Err()
}
