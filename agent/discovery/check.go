package discovery

import (
	"fmt"
	"net/netip"
	"slices"

	"outrider.org/outrider/agent/discovery/lastgood"
	"outrider.org/outrider/agent/discovery/mesh"
	"outrider.org/outrider/agent/discovery/meshfile"
	"outrider.org/outrider/agent/discovery/model"
	"outrider.org/outrider/agent/discovery/view"
	"outrider.org/outrider/agent/typedconfig"
	"outrider.org/outrider/agent/wasm"
)

// CheckOptions describes the proxy for which files are checked.
type CheckOptions struct {
	NodeType string // type of the proxy, sidecar or router; "": sidecar
	// Namespace is the namespace of the proxy, and of objects that name none; "": default.
	Namespace          string
	Labels             map[string]string // labels of the proxy, by which Gateways select it
	Domain             string            // suffix of short host names; "": cluster.local
	HasMeshCertificate bool              // the proxy gets a certificate of the mesh over SDS

	MeshConfigFile    string            // file with Istio's MeshConfig; "": its defaults
	ReservedAddresses []ReservedAddress // addresses that listeners of the mesh cannot use
	Credentials       CredentialLocation

	ListenAddresses []netip.AddrPort // addresses on which the host listens; nil: unknown

	TypedConfigs *typedconfig.Checker // checks typed_configs of EnvoyFilters; see Options
	// EnvoyIsNewerThanAPI reports whether the proxy's Envoy is newer than the linked version of
	// Envoy's API; nil: it is not.
	EnvoyIsNewerThanAPI func() bool

	FilesAreLocal  bool      // certificate files are on this host, so missing ones are reported
	ProxyReadCheck ReadCheck // reports certificate files that the proxy cannot read; nil: unknown
	// AgentReadCheck reports files of credentials that the agent cannot read; nil: unknown.
	AgentReadCheck ReadCheck
}

// Check reads files and directories as the server does, and returns their problems, sorted by
// position. It returns an error if it cannot check them.
func Check(paths []string, options CheckOptions) ([]Problem, error) {
	c, err := read(paths, options)
	if err != nil {
		return nil, err
	}
	return c.problems, nil
}

// checked is the result of reading files for one proxy.
type checked struct {
	world    *model.Mesh
	view     *view.ProxyView
	problems []Problem
}

func read(paths []string, options CheckOptions) (checked, error) {
	o := Options{Files: paths, Namespace: options.Namespace, Domain: options.Domain}
	fill(&o)
	if options.EnvoyIsNewerThanAPI == nil {
		options.EnvoyIsNewerThanAPI = func() bool { return false }
	}
	node := model.Node{Type: model.NodeType(options.NodeType), Namespace: o.Namespace,
		Labels: options.Labels, Identity: options.HasMeshCertificate}
	if node.Type == "" {
		node.Type = model.Sidecar
	}
	m, _, problems := meshfile.Read(options.MeshConfigFile)
	if m == nil {
		m = mesh.Default() // an agent that starts with an invalid MeshConfig uses the defaults
	}
	m.SystemRoots, m.ReservedAddresses = o.SystemRoots, options.ReservedAddresses
	m.Credentials = options.Credentials
	world := model.NewMesh(o.Domain, m)
	world.SetModules(func(from wasm.Source) ([]byte, error) {
		return lookForModule(from, options.FilesAreLocal)
	})
	var files *certificates
	if options.FilesAreLocal {
		files = newCertificates(options.ProxyReadCheck, options.AgentReadCheck, checkWait, nil)
	}
	v, err := view.New(world, node, view.NewCache(), files.look)
	if err != nil {
		return checked{}, fmt.Errorf("check the mesh configuration: %w", err)
	}
	s := newStore(o, filterCheck{options.TypedConfigs, options.EnvoyIsNewerThanAPI,
		func() *lastgood.RevertedVersions { return nil }, false, false}, lastgood.State{})
	touched := world.Apply(s.Load())
	v.Update(touched)
	refs, views := references{}, map[string]*served{"": {ProxyView: v}}
	refs.update(world, touched)
	problems = slices.Concat(problems, refs.problems(), unselected(world, views),
		shadowedProxyConfigs(world, node),
		v.ExposedPortProblems(options.ListenAddresses))
	return checked{world, v, gather(s.Problems(), problems, views)}, nil
}
