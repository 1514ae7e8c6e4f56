package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"outrider.org/outrider/agent/api"
	"outrider.org/outrider/agent/config"
	"outrider.org/outrider/agent/identity"
	"outrider.org/outrider/agent/identity/pki"
	"outrider.org/outrider/agent/readfile"
)

const maxRootBytes = 1 << 20

// independent are the keys of [discovery] and [identity] that other files than the drop-in may set,
// because they determine neither the mesh nor the identity of the host.
var independent = []string{"discovery.files", "discovery.mesh_config_file",
	"discovery.debounce_after", "discovery.debounce_max", "discovery.connect_timeout",
	"discovery.cache", "discovery.cache_max_age", "discovery.delta", "discovery.debug_address",
	"identity.credentials_dir", "identity.credentials_sds", "identity.restart_on_change",
	"identity.wait", "identity.persist",
	"identity.output_dir", "identity.key_type", "identity.pkcs8", "identity.ttl",
	"identity.grace_ratio", "identity.grace_jitter"}

// joinPlan is a join whose local checks have succeeded.
type joinPlan struct {
	*meshHost
	request  joinRequest
	config   *config.Config // configuration before the join
	token    joinToken
	spiffeID string
	files    []targetFile // files to write, in this order
	notes    []string
	change   fileChange
	started  bool // the join has started the unit, because the agent did not run
	disabled bool // the unit was not enabled before the join
}

// plan checks the agent, the files, the configuration, the token and the clock. It changes nothing.
func (h *meshHost) plan(ctx context.Context, r joinRequest, now time.Time) (*joinPlan, error) {
	p := &joinPlan{meshHost: h, request: r}
	err := p.checkUnit(ctx)
	if err != nil {
		return nil, err
	}
	if p.token, err = readJoinToken(r.token, now); err != nil {
		return nil, err
	}
	text, err := readfile.Read(r.roots, maxRootBytes)
	if err != nil {
		return nil, fmt.Errorf("cannot read the root certificates: %w", err)
	}
	roots, err := pki.ParseRoots(pki.PEMInput{File: r.roots, PEM: text}, now)
	if err != nil {
		return nil, err
	}
	loaded, err := config.Load(h.options)
	if err != nil {
		return nil, fmt.Errorf("the configuration is not valid; correct it first:\n%w", err)
	}
	p.config = loaded.Config
	if err := h.mayJoin(now); err != nil {
		return nil, err
	}
	settings, err := p.settings(loaded)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(h.Main)
	if err != nil {
		return nil, err
	}
	group := groupOf(info)
	p.spiffeID = pki.SpiffeID(p.config.Node.TrustDomain, p.token.namespace, p.token.account)
	p.files = []targetFile{
		{Path: h.Roots, text: pki.EncodeCertificates(roots), mode: 0o644, uid: -1, gid: group},
		{Path: h.Token, text: []byte(p.token.text + "\n"), mode: 0o400, uid: h.uid, gid: group},
		{Path: h.DropIn, text: []byte(settings), mode: 0o640, uid: -1, gid: group}}
	p.noteFiles()
	return p, nil
}

// checkUnit checks that the agent runs, or that systemd can start its unit. If Envoy runs without
// an agent, it returns an error: an undo, which stops the unit, would end that Envoy.
func (p *joinPlan) checkUnit(ctx context.Context) error {
	state := p.a.unit(ctx, p.unit)
	switch {
	case p.running && state.Masked:
		p.notes = append(p.notes, p.unit+" is masked and does not start at boot: systemctl unmask "+
			p.unit)
	case p.running && state.Active == "active" &&
		systemctl(ctx, "is-enabled", "--quiet", p.unit) != nil:
		p.notes = append(p.notes, p.unit+" does not start at boot: systemctl enable "+p.unit)
	case p.running:
	case state.Masked:
		return fmt.Errorf("the agent does not run, and %s is masked; unmask it first: systemctl "+
			"unmask %[1]s", p.unit)
	case state.Active == "":
		return fmt.Errorf("the agent does not run, and systemd has no unit %s; start the agent",
			p.unit)
	case state.Active != "inactive" && state.Active != "failed":
		return fmt.Errorf("%s is %s; wait until the agent answers", p.unit, state.Active)
	case p.a.serves(unitOf("outrider-envoy", p.a.instance) + ".service"):
		return fmt.Errorf("the agent does not run, but Envoy does; start the agent first: systemctl "+
			"start %s", p.unit)
	}
	return nil
}

// mayJoin returns an error if the host has already joined a mesh. It permits another join if the
// running agent has loaded the configuration of the earlier join, and the agent's certificate has
// expired.
func (h *meshHost) mayJoin(now time.Time) error {
	if !h.joined() {
		return nil
	}
	until := certified(h.status, now)
	switch {
	case !h.running:
		return fmt.Errorf("%s: this host has joined a mesh already; start the agent, or run "+
			"\"outrider leave\" first", h.DropIn)
	case !until.IsZero():
		return fmt.Errorf("%s: this host has joined the mesh of %s already, with a certificate until "+
			"%s; run \"outrider leave\" first", h.DropIn, h.status.Discovery.Address, utc(until))
	case !h.loaded():
		return fmt.Errorf("%s: a join was interrupted before the agent loaded this file; run "+
			"\"outrider leave\" first", h.DropIn)
	}
	return nil
}

// settings returns the text of the drop-in. It returns an error if another file sets a key that
// conflicts with the join.
func (p *joinPlan) settings(loaded *config.Loaded) (string, error) {
	var errs config.Errors
	elsewhere := func(key string) bool {
		at, set := loaded.Positions[key]
		return set && at.File != p.DropIn
	}
	refuse := func(key, message, fix string) {
		errs = append(errs, &config.Error{Position: loaded.Positions[key], Key: key,
			Message: message,
			Fix:     fix})
	}
	for _, key := range slices.Sorted(maps.Keys(loaded.Positions)) {
		table, _, _ := strings.Cut(key, ".")
		if (table == "discovery" || table == "identity") && elsewhere(key) &&
			!slices.Contains(independent, key) {
			refuse(key, "is set already, and outrider join sets which mesh the host is in",
				"remove the key, or change this file instead of joining")
		}
	}
	node := p.config.Node
	if p.request.namespace != "" && p.request.namespace != p.token.namespace {
		return "", fmt.Errorf("--group %s/%s is not in the namespace of the token, %s; use a token for "+
			"a service account of namespace %[1]s, or a group of %[3]s", p.request.namespace,
			p.request.group, p.token.namespace)
	}
	group := p.request.group
	if group == "" && p.joined() && !elsewhere("node.workload_group") {
		group = node.WorkloadGroup // another join of the same host retains its group
	}
	text := "# Written by \"outrider join\"; \"outrider leave\" removes it.\n[node]\n"
	for _, k := range []struct{ key, want, is, what string }{
		{"namespace", p.token.namespace, node.Namespace, "namespace of the token"},
		{"service_account", p.token.account, node.ServiceAccount, "service account of the token"},
		{"workload_group", group, node.WorkloadGroup, "--group"},
	} {
		key := "node." + k.key
		switch {
		case k.want == "":
		case !elsewhere(key):
			text += k.key + " = " + config.RenderTOML(k.want) + "\n"
		case k.is != k.want:
			refuse(key,
				fmt.Sprintf("%s is not the %s, %q", config.RenderTOML(k.is), k.what, k.want),
				fmt.Sprintf("use a token for service account %s/%s, or correct the key",
					node.Namespace, node.ServiceAccount))
		}
	}
	if len(errs) > 0 {
		return "", errs
	}
	addresses := any(p.request.addresses[0])
	if len(p.request.addresses) > 1 {
		addresses = p.request.addresses
	}
	text += "[discovery]\naddress = " + config.RenderTOML(addresses) +
		"\nauth = \"mtls\"\nroot_ca_file = " + config.RenderTOML(p.Roots) + "\n"
	if p.request.serverName != "" {
		text += "server_name = " + config.RenderTOML(p.request.serverName) + "\n"
	}
	return text + "[identity]\nprovider = \"istiod\"\ntoken_file = " + config.RenderTOML(p.Token) +
		"\n", nil
}

// noteFiles adds a note for each folder with configuration of the embedded discovery server, which
// has no effect in a mesh.
func (p *joinPlan) noteFiles() {
	if p.joined() {
		return
	}
	for _, path := range p.config.Discovery.Files {
		entries, err := filepath.Glob(filepath.Join(path, "*.y*ml"))
		if err == nil && len(entries) > 0 {
			p.notes = append(p.notes, path+" has no effect while the host is in the mesh")
		}
	}
}

// inMesh returns the reason why the host is not in the mesh yet; "": it is in the mesh.
func (p *joinPlan) inMesh(s api.Status, types []api.ResourceType, now time.Time) string {
	reason := "the agent has no certificate yet"
	for _, i := range s.Identities {
		switch {
		case i.Name != identity.DefaultSecret:
		case i.SPIFFEID == p.spiffeID && now.Before(i.NotAfter):
			reason = ""
		case i.Problem != "":
			reason = i.Problem
		}
	}
	switch d := s.Discovery; {
	case reason != "":
		return reason
	case d.State != "connected":
		return strings.TrimSuffix("the agent is not connected ("+d.State+"): "+d.Detail, ": ")
	case !s.Envoy.Enabled:
		return ""
	case s.CurrentEpoch == nil:
		return "Envoy is not live"
	}
	reason = "Envoy has not received the configuration of the mesh yet"
	for _, t := range types {
		switch {
		case t.Epoch != *s.CurrentEpoch:
		case t.State == "refused":
			return "Envoy refuses the configuration of the mesh: " + t.RefusalReason
		case strings.HasSuffix(t.Type, ".Listener") && t.Source == "upstream" &&
			t.State == "accepted":
			reason = ""
		}
	}
	if reason == "" && !s.Ready {
		reason = "the proxy is not ready: " + s.NotReadyReason
	}
	return reason
}
