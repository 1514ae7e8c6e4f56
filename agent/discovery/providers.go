package discovery

import (
	"fmt"
	"strings"

	"outrider.org/outrider/agent/discovery/meshfile"
	"outrider.org/outrider/agent/discovery/translate"
)

// ExtensionProvidersByCluster describes the extension providers of MeshConfig for messages, by the
// cluster of their service: "provider zipkin (/etc/mesh.yaml:3)" has the name and the line of the
// provider. If several providers use one cluster, it has all names and the line of the first
// provider. Providers without a service in the mesh are omitted.
func (s *Server) ExtensionProvidersByCluster() map[string]string {
	s.mu.Lock()
	services := translate.ExtensionProviderClusters(s.config.world)
	file, text := s.settings.MeshConfigFile, s.meshText
	s.mu.Unlock()
	names := map[string][]string{}
	for _, p := range services {
		names[p.Cluster] = append(names[p.Cluster], p.Provider)
	}
	if len(names) == 0 {
		return nil
	}
	lines, described := meshfile.ProviderLines(text), map[string]string{}
	for cluster, of := range names {
		kind := "provider "
		if len(of) > 1 {
			kind = "providers "
		}
		described[cluster] = fmt.Sprintf("%s%s (%s:%d)", kind, strings.Join(of, ", "), file,
			max(1, lines[of[0]]))
	}
	return described
}
