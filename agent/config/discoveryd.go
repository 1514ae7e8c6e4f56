package config

import (
	"cmp"
	"path/filepath"
	"strings"
	"time"
)

// Discoveryd is the configuration of one outrider-discoveryd (discoveryd.toml). As in Config, each
// table is a struct and each key a field. The definitions of its keys are in tables_discoveryd.go.
type Discoveryd struct {
	Domain         string
	MeshConfigFile string
	StateDir       string

	Listen       DiscoverydListen
	TLS          DiscoverydTLS
	Auth         DiscoverydAuth
	Push         DiscoverydPush
	Sources      []*Source // in order of precedence; Load adds one of type files if there is none
	Registries   []*Source // in order of precedence
	Registration Registration
	CA           CA
	Log          DiscoverydLog
}

// DiscoverydListen holds the keys of [listen]. An empty address disables the listener.
type DiscoverydListen struct {
	Plaintext            string
	TLS                  string
	Monitoring           string
	MaxConnectionAge     time.Duration
	MaxConnectsPerSecond int // 0: derived from the number of cores
	MaxBufferedBytes     int // per client
}

// DiscoverydTLS holds the keys of [tls].
type DiscoverydTLS struct {
	CertFile     string
	KeyFile      string
	ClientCAFile string
}

// DiscoverydAuth holds the keys of [auth].
type DiscoverydAuth struct {
	Require         string // "any", "mtls", "token" or "none"
	JoinKeyFile     string
	JoinNotBefore   string // RFC 3339 or ""
	DebugIdentities []string
	JWTIssuers      []*JWTIssuer
	TokenReview     bool
}

// JWTIssuer is one of [auth] jwt_issuers.
type JWTIssuer struct {
	Issuer   string
	Audience string
	JWKSFile string
}

// DiscoverydPush holds the keys of [push].
type DiscoverydPush struct {
	DebounceAfter time.Duration
	DebounceMax   time.Duration
	Concurrency   int // 0: derived from the number of cores
}

// Source is one [[source]] or [[registry]]. The comment of a key lists the types that have the key;
// with other types it is unset.
type Source struct {
	// Name is unique. It is the type; from the second source of a type, a number follows.
	// Registries are numbered after the sources: kubernetes may be a source and kubernetes-2 a
	// registry.
	Name        string
	Type        string   // "files", "kubernetes", "mcp" or "memory"; of a registry also consul
	Paths       []string // only for type files
	Kubeconfig  string   // only for type kubernetes; "": discoveryd runs in the cluster
	Namespaces  []string // only for type kubernetes; none: all
	WriteStatus bool     // only for type kubernetes
	Address     string   // only for types mcp and consul
	CAFile      string   // only for types mcp and consul
	CertFile    string   // only for type mcp, with KeyFile
	KeyFile     string
	TokenFile   string   // only for types mcp, memory and consul
	Listen      string   // only for type memory
	Datacenters []string // only for type consul; none: the datacenter of the Consul agent
	Namespace   string   // only for type consul: namespace of the services in the mesh
	Domain      string   // only for type consul: suffix of the services' host names
}

// Registration holds the keys of [registration].
type Registration struct {
	Enabled     bool
	Store       string // "kubernetes" or "consul"
	GracePeriod time.Duration
}

// CA holds the keys of [ca].
type CA struct {
	Enabled  bool
	CertFile string
	KeyFile  string
	RootFile string
	MaxTTL   time.Duration
}

// DiscoverydLog holds the keys of [log].
type DiscoverydLog struct {
	Level  string
	Format string
}

// DiscoverydLoaded is a valid configuration of outrider-discoveryd.
type DiscoverydLoaded struct {
	Config    *Discoveryd
	Files     []string            // that were read
	Dirs      []string            // of drop-ins, to watch; they may not exist yet
	Positions map[string]Position // position of each value that a file sets, by dotted key
	Hash      string              // SHA-256 of the effective values
}

const (
	discoverydFile  = "discoveryd.toml"
	discoverydState = "/var/lib/outrider-discoveryd"
)

// LoadDiscoveryd reads and checks a configuration of outrider-discoveryd. Options.Path defaults to
// ConfigDirectory/discoveryd.toml. Drop-ins of NAME.toml are in NAME.d beside it. An error is of
// type Errors and lists all problems.
func LoadDiscoveryd(options Options) (*DiscoverydLoaded, error) {
	layout, p := options.discoverydLayout()
	if p != nil {
		return nil, Errors{p}
	}
	sources, errs := readSources(layout, options.UnreadableReason)
	loaded, more := buildDiscoveryd(sources, len(errs) == 0, layout, options)
	if errs = append(errs, more...); len(errs) > 0 {
		errs.sort(loaded.Files)
		return nil, errs
	}
	return loaded, nil
}

func (o Options) discoverydLayout() (layout, *Error) {
	o.Path = cmp.Or(o.Path, filepath.Join(cmp.Or(o.ConfigDirectory, defaultDirectory),
		discoverydFile))
	l, p := o.layout()
	l.dropIns = strings.TrimSuffix(l.main, ".toml") + ".d"
	return l, p
}

// buildDiscoveryd is the counterpart of build for outrider-discoveryd.
func buildDiscoveryd(sources []source, complete bool, layout layout, options Options) (
	*DiscoverydLoaded, Errors) {
	c := defaultDiscoveryd()
	d := newDecoder(discoverydTables(c),
		credentials{options.Environment("CREDENTIALS_DIRECTORY"), options.CheckOnly})
	d.lists = c.lists()
	loaded := &DiscoverydLoaded{Config: c, Dirs: []string{layout.dropIns}, Positions: d.positions}
	for _, s := range sources {
		loaded.Files = append(loaded.Files, s.path)
		d.file(s)
	}
	x := &discoverydCheck{Discoveryd: c, keyCheck: keyCheck{positions: d.positions,
		fallback: Position{File: layout.main}, failed: d.failed}}
	if complete && !d.broken {
		x.all()
	}
	c.resolve(options.Environment("STATE_DIRECTORY"))
	loaded.Hash = hash(discoverydTables(c))
	return loaded, append(d.errors, x.errors...)
}

// resolve fills in defaults that depend on other keys.
func (c *Discoveryd) resolve(stateDirectories string) {
	c.StateDir = cmp.Or(c.StateDir, firstDirectory(stateDirectories), discoverydState)
	if len(c.Sources) == 0 {
		c.Sources = []*Source{newSource(false)}
	}
	kubeconfig := ""
	for _, s := range c.Sources {
		if s.Type == "kubernetes" && kubeconfig == "" {
			kubeconfig = s.Kubeconfig
		}
	}
	count := map[string]int{}
	for _, list := range [][]*Source{c.Sources, c.Registries} {
		for _, s := range list {
			if s.Type == "kubernetes" && s.Kubeconfig == "" {
				s.Kubeconfig = kubeconfig
			}
			count[s.Type]++
			if s.Name = s.Type; count[s.Type] > 1 {
				s.Name += "-" + render(count[s.Type])
			}
		}
	}
}

func defaultDiscoveryd() *Discoveryd {
	c := &Discoveryd{}
	for _, k := range settingsOf(discoverydTables(c)) {
		k.reset()
	}
	return c
}

// CompareDiscoveryd is the counterpart of Compare for outrider-discoveryd.
func CompareDiscoveryd(from, to *Discoveryd) []Change {
	return compare(discoverydTables(from), discoverydTables(to))
}

// RetainDiscoverydRestartKeys is the counterpart of RetainRestartKeys for outrider-discoveryd.
// Sources and registries keep their running values as well.
func RetainDiscoverydRestartKeys(running, next *Discoveryd) *Discoveryd {
	retained := *next
	retained.Sources, retained.Registries = nil, nil
	keep(discoverydTables(running), discoverydTables(&retained))
	retained.Sources, retained.Registries = running.Sources, running.Registries
	return &retained
}
