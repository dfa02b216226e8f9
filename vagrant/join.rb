# frozen_string_literal: true

# The provisioner that makes a machine an agent of the rig's controller: it asks the controller for a join line, and gives it to
# the machine, both by scripts of this folder over Vagrant's ssh.
#
# What must never happen here: a join line or a token in a file of this computer, or in what is printed.

require "shellwords"

module MooringRig
  # Says what went wrong and what to do, without Vagrant's own words around it.
  class Failed < Vagrant::Errors::VagrantError
    def initialize(why)
      @why = why
      super()
    end

    def error_message
      @why
    end
  end

  class Plugin < Vagrant.plugin("2")
    name "mooring-join"
    config(:mooring_join, :provisioner) { Settings }
    provisioner(:mooring_join) { Join }
  end

  class Settings < Vagrant.plugin("2", :config)
    # The role of the machine; its address, by which the controller reaches it; the addresses where its targets listen; whether
    # root there may do everything at the controller.
    attr_accessor :role, :address, :portals, :admin
  end

  class Join < Vagrant.plugin("2", :provisioner)
    def provision
      name = @machine.name.to_s
      line = joined? ? "" : run(controller, "token.sh", [name, config.role])
      say(run(@machine, "join.sh", [config.address, *config.portals], line))
      say(run(controller, "up.sh", [name]))
      say(run(@machine, "operator.sh", [], run(controller, "admin.sh", []))) if config.admin
    end

    private

    def joined?
      @machine.communicate.test("test -e /etc/mooring/agent.toml", sudo: true)
    end

    def controller
      found = @machine.env.machine(:controller, @machine.provider_name)
      return found if found.communicate.ready?

      raise Failed, "#{@machine.name} joins through the controller, which is not up: vagrant up controller"
    end

    # Runs a script of this folder as root; what it printed. The script reads `input`.
    def run(machine, script, words, input = "")
      at = "/tmp/mooring-#{script}"
      machine.communicate.upload(File.join(__dir__, script), at)
      said = { stdout: +"", stderr: +"" }
      # The text goes through the shell's standard input: it stands in no list of processes.
      command = "#{['sh', at, *words].shelljoin} <<'END-OF-INPUT'\n#{input.chomp}\nEND-OF-INPUT"
      status = machine.communicate.sudo(command, error_check: false) { |type, data| said[type] << data }
      return said[:stdout] if status.zero?

      raise Failed, "#{machine.name}: #{script} ended with #{status}: #{said[:stderr].strip}"
    end

    def say(text)
      text.each_line { |line| @machine.ui.detail(line.chomp) }
    end
  end
end
